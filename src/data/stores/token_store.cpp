#include "data/stores/token_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "core/error.h"
#include "core/hash.h"

namespace kintsugi {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr std::string_view kOldMagic{"TNTIDX\0\0", 8};
constexpr std::int64_t kHeaderBytes = 34;
constexpr std::string_view kDamaged = "the file is truncated or damaged; copy or write it again";

// The fields of an .idx are not aligned.
template <class T>
T load(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

TokenType type_of_code(std::uint8_t code, const std::string& file) {
  constexpr std::array<std::string_view, 9> kNames = {
      "",      "uint8", "int8", "int16", "int32", "int64", "a floating type", "a floating type",
      "uint16"};
  for (const TokenType type : {TokenType::U8, TokenType::I32, TokenType::U16})
    if (static_cast<std::uint8_t>(type) == code) return type;
  if (code == 0 || code >= kNames.size())
    user_error("{}: data type {} is unknown; {}", file, code, kDamaged);
  user_error("{}: its tokens are {} (code {}); convert them to uint8, uint16 or int32", file,
             kNames[code], code);
}

void check_magic(std::span<const std::byte> bytes, const std::string& file) {
  const std::string_view start(reinterpret_cast<const char*>(bytes.data()),
                               std::min(bytes.size(), kMagic.size()));
  if (start.starts_with(kOldMagic))
    user_error(
        "{} is an index of the older TNTIDX format, which is not supported: tokenize the text "
        "again, or convert it with the program that wrote it",
        file);
  if (start != kMagic)
    user_error("{} is not a Megatron index: it does not start with MMIDIDX", file);
}

// Hashes the size and both ends of a file: enough to distinguish two corpora.
std::uint64_t hash_ends(const MappedFile& file, std::uint64_t seed) {
  constexpr std::size_t kEnd = 64 * 1024;
  const std::span<const std::byte> bytes = file.bytes();
  const std::uint64_t size = bytes.size();
  seed = hash64(&size, sizeof size, seed);
  const auto first = bytes.first(std::min(bytes.size(), kEnd));
  const auto last = bytes.last(std::min(bytes.size(), kEnd));
  const std::uint64_t hash =
      hash64(last.data(), last.size(), hash64(first.data(), first.size(), seed));
  file.check_intact();
  return hash;
}

template <class T>
void widen(const std::byte* from, std::span<std::int32_t> ids) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    ids[i] = static_cast<std::int32_t>(value);
  }
}

}  // namespace

std::size_t size_of(TokenType type) {
  return type == TokenType::U8 ? 1 : type == TokenType::U16 ? 2 : 4;
}

std::string_view to_string(TokenType type) {
  return type == TokenType::U8 ? "uint8" : type == TokenType::U16 ? "uint16" : "int32";
}

TokenType token_type_for(std::int64_t vocab_size) {
  if (vocab_size <= 256) return TokenType::U8;
  return vocab_size < 65'500 ? TokenType::U16 : TokenType::I32;
}

TokenShard TokenShard::open(const std::filesystem::path& prefix) {
  TokenShard shard;
  shard.name_ = prefix.string();
  const auto index = with_ending(prefix, ".idx");
  shard.idx_.emplace(index);
  shard.bin_.emplace(with_ending(prefix, ".bin"));
  shard.check_index(index);
  const auto mask = with_ending(prefix, ".mask");
  if (std::filesystem::exists(mask)) {
    shard.mask_.emplace(mask);
    if (shard.mask_->bytes().size() != static_cast<std::size_t>(shard.tokens_))
      user_error("{} has {} bytes, but must have one for each of {} tokens; {}", mask.string(),
                 shard.mask_->bytes().size(), shard.tokens_, kDamaged);
  }
  const auto labels = with_ending(prefix, ".labels");
  if (std::filesystem::exists(labels)) {
    shard.labels_.emplace(labels);
    if (shard.labels_->bytes().size() != 4 * static_cast<std::size_t>(shard.documents_))
      user_error("{} has {} bytes, but must have 4 for each of {} documents; {}", labels.string(),
                 shard.labels_->bytes().size(), shard.documents_, kDamaged);
  }
  return shard;
}

// Checks header, sizes and ends: everything that does not require reading the arrays.
void TokenShard::check_index(const std::filesystem::path& path) {
  const std::string file = path.string();
  const auto bytes = idx_->bytes();
  check_magic(bytes, file);
  if (bytes.size() < static_cast<std::size_t>(kHeaderBytes))
    user_error("{} has {} bytes, but its header alone has {}; {}", file, bytes.size(), kHeaderBytes,
               kDamaged);
  if (const auto version = load<std::uint64_t>(bytes, 9); version != 1)
    user_error("{} has version {}, but only version 1 is supported", file, version);
  type_ = type_of_code(load<std::uint8_t>(bytes, 17), file);

  const auto sequences = load<std::uint64_t>(bytes, 18),
             boundaries = load<std::uint64_t>(bytes, 26);
  const std::uint64_t room = bytes.size() - kHeaderBytes;
  // Division avoids overflow: the counts may have any value.
  if (boundaries == 0 || sequences > room / 12 || boundaries > (room - 12 * sequences) / 8)
    user_error(
        "{} has {} bytes, too few for the {} sequences and {} document boundaries of its "
        "header; {}",
        file, bytes.size(), sequences, boundaries, kDamaged);
  const std::uint64_t rest = room - 12 * sequences - 8 * boundaries;
  if (rest != 0 && rest != sequences)  // a byte per sequence: the modes of a multimodal file
    user_error("{} has {} bytes more than its header accounts for; {}", file, rest, kDamaged);

  sequences_ = static_cast<std::int64_t>(sequences);
  documents_ = static_cast<std::int64_t>(boundaries) - 1;
  lengths_at_ = kHeaderBytes;
  pointers_at_ = lengths_at_ + 4 * sequences_;
  documents_at_ = pointers_at_ + 8 * sequences_;

  const auto bin_bytes = static_cast<std::int64_t>(bin_->bytes().size());
  const auto width = static_cast<std::int64_t>(size_of(type_));
  if (bin_bytes % width != 0)
    user_error("{}.bin has {} bytes, not a multiple of the {} bytes of a {} token; {}", name_,
               bin_bytes, width, to_string(type_), kDamaged);
  tokens_ = bin_bytes / width;
  const std::int64_t end =
      sequences_ == 0 ? 0 : sequence_begin(sequences_ - 1) + sequence_length(sequences_ - 1);
  if (end != tokens_)
    user_error("{}.bin has {} tokens ({}), but {}.idx accounts for {}; {}", name_, tokens_,
               to_string(type_), name_, end, kDamaged);
  if (sequences_ > 0 && sequence_begin(0) != 0)
    user_error("{}: the first sequence starts at token {}, not 0; {}", file, sequence_begin(0),
               kDamaged);
  const auto first = index_entry<std::int64_t>(documents_at_, 0);
  const auto last = index_entry<std::int64_t>(documents_at_, documents_);
  if (first != 0 || last != sequences_)
    user_error("{}: its documents span sequences {} to {}, but it has 0 to {}; {}", file, first,
               last, sequences_, kDamaged);
}

TokenShard TokenShard::open_text(const std::filesystem::path& file) {
  TokenShard shard;
  shard.name_ = file.string();
  shard.bin_.emplace(file);
  shard.tokens_ = static_cast<std::int64_t>(shard.bin_->bytes().size());
  shard.documents_ = shard.sequences_ = shard.tokens_ > 0 ? 1 : 0;
  return shard;
}

template <class T>
T TokenShard::index_entry(std::int64_t array, std::int64_t entry) const {
  const T value = load<T>(
      idx_->bytes(), static_cast<std::size_t>(array) + static_cast<std::size_t>(entry) * sizeof(T));
  idx_->check_intact();
  return value;
}

std::int64_t TokenShard::sequence_begin(std::int64_t sequence) const {
  KINTSUGI_CHECK(sequence >= 0 && sequence <= sequences_, "sequence {} of {}", sequence,
                 sequences_);
  if (sequence == sequences_) return tokens_;
  if (!idx_) return 0;
  const auto pointer = index_entry<std::int64_t>(pointers_at_, sequence);
  const auto width = static_cast<std::int64_t>(size_of(type_));
  if (pointer < 0 || pointer > tokens_ * width || pointer % width != 0)
    user_error("{}.idx: sequence {} starts at byte {}, which is not a token of {}.bin; {}", name_,
               sequence, pointer, name_, kDamaged);
  return pointer / width;
}

std::int64_t TokenShard::sequence_length(std::int64_t sequence) const {
  KINTSUGI_CHECK(sequence >= 0 && sequence < sequences_, "sequence {} of {}", sequence, sequences_);
  if (!idx_) return tokens_;
  const std::int64_t length = index_entry<std::int32_t>(lengths_at_, sequence);
  if (length < 0 || length > tokens_)
    user_error("{}.idx: sequence {} has {} tokens, but {}.bin has {}; {}", name_, sequence, length,
               name_, tokens_, kDamaged);
  return length;
}

std::int64_t TokenShard::document_sequence(std::int64_t document) const {
  KINTSUGI_CHECK(document >= 0 && document <= documents_, "document {} of {}", document,
                 documents_);
  if (!idx_) return document;
  const auto sequence = index_entry<std::int64_t>(documents_at_, document);
  if (sequence < 0 || sequence > sequences_)
    user_error("{}.idx: document {} starts at sequence {} of {}; {}", name_, document, sequence,
               sequences_, kDamaged);
  return sequence;
}

std::int64_t TokenShard::document_begin(std::int64_t document) const {
  return sequence_begin(document_sequence(document));
}

std::int64_t TokenShard::document_of(std::int64_t token) const {
  KINTSUGI_CHECK(token >= 0 && token < tokens_, "token {} of {}", token, tokens_);
  std::int64_t low = 0, high = documents_;  // begin(low) <= token < begin(high)
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (document_begin(middle) <= token ? low : high) = middle;
  }
  return low;
}

void TokenShard::read(std::int64_t first, std::span<std::int32_t> ids) const {
  const auto count = static_cast<std::int64_t>(ids.size());
  KINTSUGI_CHECK(first >= 0 && first <= tokens_ && count <= tokens_ - first,
                 "tokens {} to {} of {} with {}", first, first + count, name_, tokens_);
  const std::byte* from = bin_->bytes().data() + static_cast<std::size_t>(first) * size_of(type_);
  if (type_ == TokenType::U8)
    widen<std::uint8_t>(from, ids);
  else if (type_ == TokenType::U16)
    widen<std::uint16_t>(from, ids);
  else
    widen<std::int32_t>(from, ids);
  bin_->check_intact();
}

void TokenShard::read_mask(std::int64_t first, std::span<std::uint8_t> mask) const {
  const auto count = static_cast<std::int64_t>(mask.size());
  KINTSUGI_CHECK(first >= 0 && first <= tokens_ && count <= tokens_ - first,
                 "mask {} to {} of {} with {}", first, first + count, name_, tokens_);
  if (!mask_) {
    std::fill(mask.begin(), mask.end(), std::uint8_t{1});
    return;
  }
  if (count == 0) return;
  std::memcpy(mask.data(), mask_->bytes().data() + first, mask.size());
  mask_->check_intact();
}

std::int32_t TokenShard::label(std::int64_t document) const {
  KINTSUGI_CHECK(labels_ && document >= 0 && document < documents_, "label {} of {} in {}",
                 document, documents_, name_);
  const auto label = load<std::int32_t>(labels_->bytes(), 4 * static_cast<std::size_t>(document));
  labels_->check_intact();
  if (label < 0)
    user_error("{}.labels: document {} has label {}, labels are counted from 0; {}", name_,
               document, label, kDamaged);
  return label;
}

std::uint64_t TokenShard::fingerprint() const {
  std::uint64_t hash = hash_ends(*bin_, static_cast<std::uint64_t>(type_));
  if (idx_) hash = hash_ends(*idx_, hash);
  if (mask_) hash = hash_ends(*mask_, hash);
  if (labels_) hash = hash_ends(*labels_, hash);
  return hash;
}

}  // namespace kintsugi
