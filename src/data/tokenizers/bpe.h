#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kintsugi {

// Hash table (left id, right id) -> merged id and rank; usually one probe.
class MergeTable {
 public:
  struct Merge {
    std::int32_t rank, id;  // the lowest rank is merged first
  };
  static constexpr std::int32_t kNever = 0x7FFFFFFF;

  void reserve(std::size_t merges);
  void set(std::int32_t left, std::int32_t right, Merge merge);  // overwrites an earlier entry
  std::size_t ranks() const { return ranks_; }                   // the highest rank + 1
  Merge find(std::int32_t left, std::int32_t right) const {
    if (slots_.empty()) return {kNever, -1};
    const std::uint64_t key = key_of(left, right);
    for (std::size_t i = start_of(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return slots_[i].merge;
      if (slots_[i].key == kFree) return {kNever, -1};
    }
  }

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kFree;
    Merge merge{};
  };
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }
  std::size_t start_of(std::uint64_t key) const {
    return static_cast<std::size_t>(key * 0x9E3779B97F4A7C15ull >> shift_);
  }

  std::vector<Slot> slots_;
  std::size_t used_ = 0, ranks_ = 0;
  int shift_ = 63;
};

// Merge symbols in place: the lowest rank first, of equal ranks the leftmost first. All three give
// the same result. merge_short is quadratic and fast for words; the others take O(n log n).
void merge_short(const MergeTable& merges, std::vector<std::int32_t>& symbols);  // at most 64
void merge_with_heap(const MergeTable& merges, std::vector<std::int32_t>& symbols);
// Processes all positions of a rank together, in memory order: several times faster than a heap for
// millions of symbols.
void merge_by_rank(const MergeTable& merges, std::vector<std::int32_t>& symbols);

// The byte-pair encoding of a tokenizer.json. Immutable.
class BpeModel {
 public:
  struct Options {
    bool byte_level = true;      // symbols are bytes, else Unicode characters
    bool ignore_merges = false;  // a pre-token in the vocabulary is one token, without merging
    bool byte_fallback = false;  // a character without a token becomes <0xE2><0x96><0x81>
    bool fuse_unknown = false;
    std::int32_t unknown = -1;  // id for a character without a token; -1: it is dropped
  };
  using Vocabulary = std::unordered_map<std::string, std::int32_t>;

  // Tokens are bytes, not letters of the byte alphabet. Merges refer to ids of the vocabulary.
  struct MergeRule {
    std::int32_t left, right, merged;
  };
  BpeModel(Vocabulary vocabulary, const std::vector<MergeRule>& merges, const Options& options);

  const Vocabulary& vocabulary() const { return vocabulary_; }
  const MergeTable& merges() const { return merges_; }
  bool ignore_merges() const { return options_.ignore_merges; }

  // The initial symbols, before merging.
  void symbols_of(std::string_view pre_token, std::vector<std::int32_t>& symbols) const;
  // Whether a pre-token may be split and encoded in segments, because no merge crosses their ends.
  bool splittable() const { return splittable_; }
  // The length of the first such segment.
  std::size_t first_segment(std::string_view pre_token) const;

 private:
  std::int32_t id_of(const std::string& token) const;
  void find_junctions(const std::vector<MergeRule>& merges);

  Vocabulary vocabulary_;
  MergeTable merges_;
  Options options_;
  std::array<std::int32_t, 256> byte_ids_;              // of the bytes, or of <0x00> …
  std::unordered_map<char32_t, std::int32_t> letters_;  // one-character tokens
  bool splittable_ = false, every_byte_ = false;
  // For all merges: the last character of the left token -> first characters of right tokens.
  std::unordered_map<char32_t, std::vector<char32_t>> junctions_;
};

// Encodes pre-tokens, with a cache. One object per thread.
class BpeEncoder {
 public:
  explicit BpeEncoder(std::shared_ptr<const BpeModel> model);

  void encode(std::string_view pre_token, std::vector<std::int32_t>& ids) {
    if (model_->splittable()) [[unlikely]]
      return encode_in_segments(pre_token, ids);
    encode_segment(pre_token, ids);
  }
  const BpeModel& model() const { return *model_; }

 private:
  static constexpr std::size_t kLongestKey = 32, kMostIds = 7;
  // One cache line. The key has the bytes as four overlapping words, unique for a given length.
  struct alignas(64) Entry {
    std::array<std::uint64_t, 4> key;
    std::int16_t length = 0, count = 0;
    std::array<std::int32_t, kMostIds> ids;
  };

  void encode_segment(std::string_view pre_token, std::vector<std::int32_t>& ids);
  void encode_in_segments(std::string_view pre_token, std::vector<std::int32_t>& ids);
  void encode_uncached(std::string_view pre_token, std::vector<std::int32_t>& ids);
  static std::array<std::uint64_t, 4> key_of(std::string_view pre_token);

  std::shared_ptr<const BpeModel> model_;
  std::vector<Entry> cache_;
  std::vector<std::int32_t> symbols_;
};

}  // namespace kintsugi
