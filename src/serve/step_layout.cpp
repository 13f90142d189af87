#include "serve/step_layout.h"

#include <algorithm>
#include <bit>
#include <span>

#include "core/error.h"
#include "core/philox.h"
#include "serve/page_pool.h"
#include "tensor/arena.h"

namespace kintsugi {
namespace {

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }
std::int64_t power_of_two(std::int64_t n) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
}
// Whether a token is computed as the next one of a sequence. Which code computes a token never
// depends on how its prompt was divided.
bool is_single(const StepSequence& s) { return s.tokens.size() == 1 && !s.is_prompt; }
std::int32_t narrow(std::int64_t n) { return static_cast<std::int32_t>(n); }

constexpr std::int32_t kEnd = -1;

// A copy of integers in device memory.
class DeviceIntegers {
 public:
  DeviceIntegers(Backend& backend, std::vector<std::int32_t>& host)
      : backend_(backend), host_(host), arena_(backend) {
    memory_ = arena_.allocate(Region::Communication, "message", DType::I32, {std::ssize(host)});
    backend_.upload(memory_, host_.data());
  }
  void download() { backend_.download(host_.data(), memory_); }
  const Tensor& tensor() const { return memory_; }

 private:
  Backend& backend_;
  std::vector<std::int32_t>& host_;
  Arena arena_;
  Tensor memory_;
};

void broadcast(Backend& backend, Communicator& group, std::vector<std::int32_t>& values) {
  DeviceIntegers on_device(backend, values);
  group.wait(group.broadcast(on_device.tensor(), 0));
  on_device.download();
}

void send(Backend& backend, Communicator& group, std::vector<std::int32_t> message) {
  std::vector<std::int32_t> size = {static_cast<std::int32_t>(message.size())};
  broadcast(backend, group, size);
  broadcast(backend, group, message);
}

// Lists of integers, each with its length in front.
class Writer {
 public:
  void add(std::int64_t n) { all_.push_back(static_cast<std::int32_t>(n)); }
  void add(const std::vector<std::int32_t>& list) {
    add(std::ssize(list));
    all_.insert(all_.end(), list.begin(), list.end());
  }
  std::vector<std::int32_t> take() { return std::move(all_); }

 private:
  std::vector<std::int32_t> all_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::int32_t> all) : rest_(all) {}
  std::int32_t number() {
    const std::int32_t n = rest_.front();
    rest_ = rest_.subspan(1);
    return n;
  }
  std::vector<std::int32_t> list() {
    const auto count = static_cast<std::size_t>(number());
    const auto list = rest_.first(count);
    rest_ = rest_.subspan(count);
    return {list.begin(), list.end()};
  }

 private:
  std::span<const std::int32_t> rest_;
};

}  // namespace

std::int64_t padded_singles(std::int64_t singles) {
  return singles <= 8 ? power_of_two(singles) : round_up(singles, 8);
}
std::int64_t padded_keys(std::int64_t keys) {
  return power_of_two(std::max<std::int64_t>(keys, 256));
}

StepLayout::StepLayout(const std::vector<StepSequence>& sequences, const StepShape& shape) {
  for (const StepSequence& s : sequences) {
    max_keys = std::max(max_keys, s.position + std::ssize(s.tokens));
    largest = std::max(largest, s.largest);
  }
  max_keys = padded_keys(max_keys);
  if (largest > 1) largest = power_of_two(largest);
  page_columns = shape.has_pages ? max_keys / kPageTokens : 0;
  reads_of.resize(sequences.size());
  const bool repeatable =
      shape.pads_singles &&
      std::all_of(sequences.begin(), sequences.end(),
                  [](const StepSequence& s) { return is_single(s) && s.targets.size() == 1; });
  for (const bool single : {true, false}) {
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const StepSequence& s = sequences[i];
      if (is_single(s) != single) continue;
      add_reads(s, i, rows());
      add(s, static_cast<std::int64_t>(i), shape);
    }
    if (single) singles = rows();
  }
  if (repeatable) pad_singles(padded_singles(singles));
  const std::int64_t tables = repeatable ? singles : std::ssize(sequences);
  pages.resize(static_cast<std::size_t>(tables * page_columns));
  for (std::size_t i = 0; i < sequences.size() && shape.has_pages; ++i)
    std::copy(sequences[i].pages.begin(), sequences[i].pages.end(),
              pages.begin() + static_cast<std::ptrdiff_t>(i) * page_columns);
  if (shape.fixed_rows > 0) pad_rows(shape.fixed_rows);
  std::int64_t padded = reads();
  if (shape.fixed_reads > 0) padded = round_up(padded, shape.fixed_reads);
  if (repeatable) padded = std::max(padded, singles);
  read_rows.resize(static_cast<std::size_t>(padded), 0);
  targets.resize(static_cast<std::size_t>(padded), -1);
  if (!repeatable) return;
  for (const std::int64_t n : {singles, rows(), max_keys, padded, largest})
    key = derive_key(key + 1, static_cast<std::uint64_t>(n));
  key |= 1;
}

void StepLayout::add(const StepSequence& s, std::int64_t table_row, const StepShape& shape) {
  const std::int64_t first = rows(), count = std::ssize(s.tokens);
  KINTSUGI_CHECK(!shape.has_pages || std::ssize(s.pages) * kPageTokens >= s.position + count,
                 "{} pages for {} tokens", s.pages.size(), s.position + count);
  ids.insert(ids.end(), s.tokens.begin(), s.tokens.end());
  for (std::int64_t i = s.position; i < s.position + count; ++i) {
    positions.push_back(narrow(i));
    cache_rows.push_back(
        shape.has_pages ? narrow(s.pages[static_cast<std::size_t>(i / kPageTokens)] * kPageTokens +
                                 i % kPageTokens)
                        : -1);
  }
  const std::int64_t most = is_single(s) ? 1 : shape.tile_tokens;
  std::vector<std::int32_t>& tiles = is_single(s) ? single_tiles : chunk_tiles;
  for (std::int64_t i = 0; i < count && shape.has_pages; i += most)
    for (const std::int64_t n : {first + i, std::min(most, count - i), table_row, s.position + i})
      tiles.push_back(narrow(n));
  if (is_single(s))
    slots.push_back(s.slot);
  else
    chunks.push_back({.first = first, .tokens = count, .slot = s.slot, .position = s.position});
}

void StepLayout::add_reads(const StepSequence& s, std::size_t index, std::int64_t first_row) {
  KINTSUGI_CHECK(s.targets.size() <= s.tokens.size(), "{} targets of {} tokens", s.targets.size(),
                 s.tokens.size());
  const std::int64_t row = first_row + std::ssize(s.tokens) - std::ssize(s.targets);
  for (std::size_t i = 0; i < s.targets.size(); ++i) {
    reads_of[index].push_back(reads());
    read_rows.push_back(narrow(row + static_cast<std::int64_t>(i)));
    targets.push_back(s.targets[i]);
  }
  if (s.whole && !s.targets.empty()) whole_reads.push_back(reads() - 1);
}

// Adds rows that belong to no sequence.
void StepLayout::pad_rows(std::int64_t count) {
  KINTSUGI_CHECK(rows() <= count, "{} rows in a step of {}", rows(), count);
  ids.resize(static_cast<std::size_t>(count), 0);
  positions.resize(static_cast<std::size_t>(count), 0);
  cache_rows.resize(static_cast<std::size_t>(count), -1);
}

void StepLayout::pad_singles(std::int64_t count) {
  pad_rows(count);
  slots.resize(static_cast<std::size_t>(count), -1);
  if (!single_tiles.empty()) single_tiles.resize(static_cast<std::size_t>(4 * count), 0);
  singles = count;
}

void send_step(Backend& backend, Communicator& group, const std::vector<StepSequence>& sequences) {
  Writer writer;
  writer.add(std::ssize(sequences));
  for (const StepSequence& s : sequences) {
    for (const std::int64_t n : {s.position, std::int64_t{s.slot}, s.largest, std::int64_t{s.whole},
                                 std::int64_t{s.is_prompt}})
      writer.add(n);
    writer.add(s.tokens);
    writer.add(s.pages);
    writer.add(s.targets);
  }
  send(backend, group, writer.take());
}

void send_end(Backend& backend, Communicator& group) { send(backend, group, {kEnd}); }

std::optional<std::vector<StepSequence>> receive_step(Backend& backend, Communicator& group) {
  std::vector<std::int32_t> size(1);
  broadcast(backend, group, size);
  std::vector<std::int32_t> message(static_cast<std::size_t>(size[0]));
  broadcast(backend, group, message);
  Reader reader(message);
  const std::int32_t count = reader.number();
  if (count == kEnd) return {};
  std::vector<StepSequence> sequences(static_cast<std::size_t>(count));
  for (StepSequence& s : sequences) {
    s.position = reader.number();
    s.slot = reader.number();
    s.largest = reader.number();
    s.whole = reader.number() != 0;
    s.is_prompt = reader.number() != 0;
    s.tokens = reader.list();
    s.pages = reader.list();
    s.targets = reader.list();
  }
  return sequences;
}

std::int32_t largest_of(Backend& backend, Communicator& group, std::int32_t value) {
  std::vector<std::int32_t> values = {value};
  DeviceIntegers on_device(backend, values);
  group.wait(group.all_reduce(on_device.tensor(), ReduceOp::Max));
  on_device.download();
  return values[0];
}

}  // namespace kintsugi
