#include "data/stores/token_writer.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/hash.h"
#include "data/stores/append_file.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 5> kEndings = {".bin", ".mask", ".labels", ".idx", ".lengths"};

fs::path partial(const fs::path& prefix, const char* ending) {
  return with_ending(with_ending(prefix, ".partial"), ending);
}

template <class T>
void write_narrow(AppendFile& file, std::span<const std::int32_t> ids) {
  std::array<T, 4096> narrow;
  while (!ids.empty()) {
    const auto block = ids.first(std::min(ids.size(), narrow.size()));
    for (std::size_t i = 0; i < block.size(); ++i) {
      narrow[i] = static_cast<T>(block[i]);
      KINTSUGI_CHECK(static_cast<std::int32_t>(narrow[i]) == block[i] && block[i] >= 0,
                     "token {} does not fit its type", block[i]);
    }
    file.write(narrow.data(), block.size() * sizeof(T));
    ids = ids.subspan(block.size());
  }
}

}  // namespace

// PREFIX.partial.lengths has an int32 per sequence: its length, ~length if the document continues
// in the next sequence, or kNoSequence for a document without sequences.
constexpr std::int32_t kNoSequence = std::numeric_limits<std::int32_t>::min();

struct TokenWriter::Files {
  Files(const fs::path& prefix, TokenType type, const Options& options, const State& from)
      : bin(partial(prefix, ".bin"), static_cast<std::uint64_t>(from.tokens) * size_of(type)),
        lengths(partial(prefix, ".lengths"),
                static_cast<std::uint64_t>(from.sequences + from.empty) * 4) {
    if (options.mask)
      mask.emplace(partial(prefix, ".mask"), static_cast<std::uint64_t>(from.tokens));
    if (options.labels)
      labels.emplace(partial(prefix, ".labels"), static_cast<std::uint64_t>(from.documents) * 4);
  }
  AppendFile bin, lengths;
  std::optional<AppendFile> mask, labels;
  std::string idx_hash;
};

TokenWriter::TokenWriter(const fs::path& prefix, TokenType type)
    : TokenWriter(prefix, type, Options{}, State{}) {}

TokenWriter::TokenWriter(const fs::path& prefix, TokenType type, Options options)
    : TokenWriter(prefix, type, options, State{}) {}

TokenWriter::TokenWriter(const fs::path& prefix, TokenType type, Options options, const State& from)
    : prefix_(prefix),
      type_(type),
      options_(options),
      state_(from),
      files_(std::make_unique<Files>(prefix, type, options, from)) {}

TokenWriter::~TokenWriter() = default;

std::int64_t TokenWriter::bytes() const { return static_cast<std::int64_t>(files_->bin.size()); }

void TokenWriter::append(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask) {
  KINTSUGI_CHECK(mask.empty() || (options_.mask && mask.size() == ids.size()),
                 "{} mask bytes for {} tokens", mask.size(), ids.size());
  while (!ids.empty()) {
    if (state_.open_tokens == options_.longest_sequence) end_sequence();
    const auto room = static_cast<std::size_t>(options_.longest_sequence - state_.open_tokens);
    const auto block = ids.first(std::min(ids.size(), room));
    if (type_ == TokenType::U8)
      write_narrow<std::uint8_t>(files_->bin, block);
    else if (type_ == TokenType::U16)
      write_narrow<std::uint16_t>(files_->bin, block);
    else
      write_narrow<std::int32_t>(files_->bin, block);
    if (files_->mask) {
      const std::vector<std::uint8_t> ones(mask.empty() ? block.size() : 0, 1);
      files_->mask->write(mask.empty() ? ones.data() : mask.data(), block.size());
    }
    state_.open_tokens += static_cast<std::int64_t>(block.size());
    state_.tokens += static_cast<std::int64_t>(block.size());
    ids = ids.subspan(block.size());
    if (!mask.empty()) mask = mask.subspan(block.size());
  }
}

void TokenWriter::put_length(bool ends_document) {
  const auto length = static_cast<std::int32_t>(state_.open_tokens);
  const std::int32_t entry = ends_document ? length : ~length;
  files_->lengths.write(&entry, sizeof entry);
  state_.open_tokens = 0;
  ++state_.sequences;
}

void TokenWriter::end_sequence() { put_length(false); }

void TokenWriter::put_label(std::int32_t label) {
  KINTSUGI_CHECK(options_.labels == (label >= 0), "label {} of document {}", label,
                 state_.documents);
  if (files_->labels) files_->labels->write(&label, sizeof label);
}

void TokenWriter::end_document(std::int32_t label) {
  put_label(label);
  put_length(true);
  ++state_.documents;
}

void TokenWriter::empty_document(std::int32_t label) {
  KINTSUGI_CHECK(state_.open_tokens == 0, "a document has not ended");
  put_label(label);
  files_->lengths.write(&kNoSequence, sizeof kNoSequence);
  ++state_.empty;
  ++state_.documents;
}

void TokenWriter::sync() {
  files_->bin.sync();
  files_->lengths.sync();
  if (files_->mask) files_->mask->sync();
  if (files_->labels) files_->labels->sync();
}

void TokenWriter::write_index() {
  const MappedFile lengths(partial(prefix_, ".lengths"));
  const auto entry = [&](std::int64_t i) {
    std::int32_t value;
    std::memcpy(&value, lengths.bytes().data() + i * 4, 4);
    return value;
  };
  AppendFile index(partial(prefix_, ".idx"), 0);
  const auto put = [&](auto value) { index.write(&value, sizeof value); };
  index.write("MMIDIDX\0\0", 9);
  put(std::uint64_t{1});
  put(static_cast<std::uint8_t>(type_));
  put(static_cast<std::uint64_t>(state_.sequences));
  put(static_cast<std::uint64_t>(state_.documents + 1));
  const std::int64_t entries = state_.sequences + state_.empty;
  const auto for_each_length = [&](auto&& use) {
    for (std::int64_t i = 0; i < entries; ++i)
      if (const std::int32_t value = entry(i); value != kNoSequence)
        use(value < 0 ? ~value : value);
  };
  for_each_length([&](std::int32_t length) { put(length); });
  std::int64_t pointer = 0;
  for_each_length([&](std::int32_t length) {
    put(pointer);
    pointer += static_cast<std::int64_t>(size_of(type_)) * length;
  });
  put(std::int64_t{0});
  std::int64_t sequences = 0;
  for (std::int64_t i = 0; i < entries; ++i) {
    const std::int32_t value = entry(i);
    if (value != kNoSequence) ++sequences;
    if (value == kNoSequence || value >= 0) put(sequences);
  }
  lengths.check_intact();
  index.sync();
  files_->idx_hash = index.hash();
}

StoreInfo::Shard TokenWriter::finish() {
  sync();
  KINTSUGI_CHECK(state_.open_tokens == 0, "a document has not ended");
  write_index();
  return {prefix_.filename().string(), files_->bin.hash(), files_->idx_hash,
          files_->mask ? files_->mask->hash() : "", files_->labels ? files_->labels->hash() : ""};
}

void TokenWriter::publish(const fs::path& prefix) {
  for (const char* ending :
       {".bin", ".mask", ".labels", ".idx"}) {  // .idx last: it makes the pair valid
    const fs::path from = partial(prefix, ending), to = with_ending(prefix, ending);
    if (!fs::exists(from)) continue;
    if (::rename(from.c_str(), to.c_str()) != 0)
      failure("cannot rename {} to {}: {}", from.string(), to.string(), std::strerror(errno));
  }
  std::error_code ignored;
  fs::remove(partial(prefix, ".lengths"), ignored);
}

void TokenWriter::discard(const fs::path& prefix) noexcept {
  std::error_code ignored;
  for (const char* ending : kEndings) fs::remove(partial(prefix, ending), ignored);
}

}  // namespace kintsugi
