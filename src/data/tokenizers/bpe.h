#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizers/bpe_merge.h"

namespace kintsugi {

// Byte-pair encoding as a tokenizer.json describes it. Does not change once it is made.
class BpeModel {
 public:
  struct Options {
    bool byte_level = true;      // symbols are bytes, else Unicode characters
    bool ignore_merges = false;  // a piece that is a token is that token, whatever the merges say
    bool byte_fallback = false;  // a character that is no token becomes <0xE2><0x96><0x81>
    bool fuse_unknown = false;
    std::int32_t unknown = -1;  // the id of what has no token; -1: it is dropped
  };
  using Vocabulary = std::unordered_map<std::string, std::int32_t>;

  // Tokens and merges as bytes, not in the byte alphabet. Merges name ids of the vocabulary.
  struct MergeRule {
    std::int32_t left, right, merged;
  };
  BpeModel(Vocabulary vocabulary, const std::vector<MergeRule>& merges, const Options& options);

  const Vocabulary& vocabulary() const { return vocabulary_; }
  const MergeTable& merges() const { return merges_; }
  bool ignore_merges() const { return options_.ignore_merges; }

  // The symbols that merging starts from.
  void symbols_of(std::string_view piece, std::vector<std::int32_t>& symbols) const;
  // Whether a piece may be encoded in parts, cut where no merge can cross.
  bool cuttable() const { return cuttable_; }
  // How long the front part of a piece is whose end no merge crosses.
  std::size_t front_part(std::string_view piece) const;

 private:
  std::int32_t id_of(const std::string& token) const;
  void find_junctions(const std::vector<MergeRule>& merges);

  Vocabulary vocabulary_;
  MergeTable merges_;
  Options options_;
  std::array<std::int32_t, 256> byte_ids_;              // of the bytes themselves, or <0x00> …
  std::unordered_map<char32_t, std::int32_t> letters_;  // one-character tokens
  bool cuttable_ = false, every_byte_ = false;
  // The characters on both sides of the place where two tokens merge, for all merges.
  std::unordered_map<char32_t, std::vector<char32_t>> junctions_;
};

// Encodes pieces with a cache of those seen before; one per thread.
class BpeEncoder {
 public:
  explicit BpeEncoder(std::shared_ptr<const BpeModel> model);

  void encode(std::string_view piece, std::vector<std::int32_t>& ids) {
    if (model_->cuttable()) [[unlikely]]
      return encode_in_parts(piece, ids);
    encode_part(piece, ids);
  }
  const BpeModel& model() const { return *model_; }

 private:
  static constexpr std::size_t kLongestKey = 32, kMostIds = 7;
  // One cache line. The key is the bytes as four overlapping words, unambiguous given the length.
  struct alignas(64) Entry {
    std::array<std::uint64_t, 4> key;
    std::int16_t length = 0, count = 0;
    std::array<std::int32_t, kMostIds> ids;
  };

  void encode_part(std::string_view piece, std::vector<std::int32_t>& ids);
  void encode_in_parts(std::string_view piece, std::vector<std::int32_t>& ids);
  void encode_uncached(std::string_view piece, std::vector<std::int32_t>& ids);
  static std::array<std::uint64_t, 4> key_of(std::string_view piece);

  std::shared_ptr<const BpeModel> model_;
  std::vector<Entry> cache_;
  std::vector<std::int32_t> symbols_;
};

}  // namespace kintsugi
