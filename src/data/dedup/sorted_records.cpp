#include "data/dedup/sorted_records.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/file.h"

namespace kintsugi {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

namespace {

std::uint64_t read_number(const char* from, std::size_t bytes) {
  if (bytes == 4) {
    std::uint32_t number;
    std::memcpy(&number, from, 4);
    return number;
  }
  std::uint64_t number;
  std::memcpy(&number, from, 8);
  return number;
}

}  // namespace

std::uint64_t RecordForm::value(const char* record, std::size_t row) const {
  return read_number(record + row * value_bytes, value_bytes);
}

std::uint64_t RecordForm::number(const char* record) const {
  return read_number(record + rows * value_bytes, number_bytes);
}

int RecordForm::compare(const char* a, const char* b, bool with_number) const {
  for (std::size_t row = 0; row < rows; ++row)
    if (const std::uint64_t left = value(a, row), right = value(b, row); left != right)
      return left < right ? -1 : 1;
  if (!with_number) return 0;
  const std::uint64_t left = number(a), right = number(b);
  return left == right ? 0 : left < right ? -1 : 1;
}

void sort_records(const RecordForm& form, std::string& records) {
  const std::size_t size = form.bytes();
  std::vector<std::pair<std::uint64_t, const char*>> order;
  order.reserve(records.size() / size);
  for (std::size_t at = 0; at < records.size(); at += size)
    order.emplace_back(form.value(&records[at], 0), &records[at]);
  std::sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : form.compare(a.second, b.second) < 0;
  });
  std::string sorted;
  sorted.reserve(records.size());
  for (const auto& [key, record] : order) sorted.append(record, size);
  records = std::move(sorted);
}

struct RecordMerge::Source {
  Source(const RecordForm& records, RecordRange from, std::size_t block)
      : form(records), range(std::move(from)), at(range.begin), block_bytes(block) {}

  // The next record; false: there is none.
  bool advance() {
    position += form.bytes();
    return position < buffer.size() || fill();
  }
  const char* record() const { return buffer.data() + position; }

  bool fill() {
    if (at == range.end) {
      done = true;
      buffer = {};
      if (range.checksum && hash.digest() != *range.checksum) damaged("its checksum differs");
      return false;
    }
    const std::string last = buffer.empty() ? "" : buffer.substr(buffer.size() - form.bytes());
    buffer.resize(std::min<std::uint64_t>(block_bytes, range.end - at));
    read();
    if (range.checksum) hash.update(buffer.data(), buffer.size());
    check_order(last);
    at += buffer.size();
    position = 0;
    return true;
  }

  void read() {
    const FileDescriptor file = open_regular_file(range.file);
    for (std::size_t have = 0; have < buffer.size();) {
      const ssize_t got =
          ::pread(file, buffer.data() + have, buffer.size() - have, static_cast<off_t>(at + have));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) failure("cannot read {}: {}", range.file.string(), std::strerror(errno));
      if (got == 0) damaged("it is shorter than it was");
      have += static_cast<std::size_t>(got);
    }
  }

  void check_order(const std::string& last) const {
    const char* before = last.empty() ? nullptr : last.data();
    for (std::size_t i = 0; i < buffer.size(); i += form.bytes()) {
      if (before != nullptr && form.compare(before, buffer.data() + i) >= 0)
        damaged("its records are not in order");
      before = buffer.data() + i;
    }
  }

  [[noreturn]] void damaged(const char* reason) const {
    user_error("{} is damaged ({}): remove it with the .json of its unit, and run --stage {} again",
               range.file.string(), reason, range.stage);
  }

  const RecordForm& form;
  RecordRange range;
  std::uint64_t at;
  std::size_t block_bytes;
  std::string buffer;
  std::size_t position = 0;
  bool done = false;
  StreamHash hash;
};

RecordMerge::RecordMerge(const RecordForm& form, std::vector<RecordRange> ranges,
                         std::int64_t memory, Ties ties)
    : form_(form), ties_(ties) {
  constexpr std::size_t kFewestRecords = 16, kMostBytes = std::size_t{4} << 20;
  const std::size_t share =
      static_cast<std::size_t>(memory) / std::max<std::size_t>(ranges.size(), 1);
  const std::size_t records = std::max(std::min(share, kMostBytes) / form.bytes(), kFewestRecords);
  for (RecordRange& range : ranges)
    sources_.push_back(std::make_unique<Source>(form_, std::move(range), records * form.bytes()));
}

RecordMerge::~RecordMerge() = default;

RecordMerge::Player RecordMerge::player(std::size_t source) const {
  const Source& of = *sources_[source];
  return {of.done ? UINT64_MAX : form_.value(of.record(), 0), source};
}

bool RecordMerge::before(const Player& a, const Player& b) const {
  if (a.key == b.key) [[unlikely]]
    return before_if_equal(a.source, b.source);
  return a.key < b.key;
}

bool RecordMerge::before_if_equal(std::size_t a, std::size_t b) const {
  const Source &left = *sources_[a], &right = *sources_[b];
  if (left.done || right.done) return !left.done || (right.done && a < b);
  const int order = form_.compare(left.record(), right.record(), ties_ == Ties::Numbers);
  return order != 0 ? order < 0 : a < b;
}

// Each node gets the loser of its two subtrees; the winners go up.
void RecordMerge::begin() {
  const std::size_t count = sources_.size();
  for (auto& source : sources_) source->fill();
  losers_.assign(count, {});
  std::vector<Player> winners(2 * count);
  for (std::size_t i = 0; i < count; ++i) winners[count + i] = player(i);
  for (std::size_t node = count - 1; node > 0; --node) {
    const Player a = winners[2 * node], b = winners[2 * node + 1];
    const bool first = before(a, b);
    winners[node] = first ? a : b;
    losers_[node] = first ? b : a;
  }
  losers_[0] = winners[1];
}

// Lets a source with a new record play against the losers on its way to the root.
void RecordMerge::replay(Player player) {
  for (std::size_t node = (player.source + sources_.size()) / 2; node > 0; node /= 2)
    if (before(losers_[node], player)) std::swap(losers_[node], player);
  losers_[0] = player;
}

bool RecordMerge::next(const char*& record, std::size_t& range) {
  if (sources_.empty()) return false;
  if (std::exchange(started_, true)) {
    const std::size_t source = losers_[0].source;
    sources_[source]->advance();
    replay(player(source));
  } else {
    begin();
  }
  const Source& winner = *sources_[losers_[0].source];
  if (winner.done) return false;
  record = winner.record();
  range = losers_[0].source;
  return true;
}

}  // namespace kintsugi
