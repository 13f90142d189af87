#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/dedup/dedup_text.h"

namespace kintsugi {

enum class ShingleHash : std::uint8_t { XxHash, Sha1 };  // of SHA-1 the first bytes, little-endian

// MinHash with LSH, as datatrove computes it. Two documents are a pair if all values of a band are
// equal, with the probability 1 - (1 - s^rows)^bands at similarity s of their sets of shingles.
struct MinHashShape {
  int ngram = 5;            // words of a shingle, as DedupText has them
  bool characters = false;  // not words, but characters, of the text as it is
  int bands = 14, rows = 8;
  int bits = 64;  // of a value: 32 or 64
  ShingleHash hash = ShingleHash::XxHash;
  bool operator==(const MinHashShape&) const = default;
};

std::uint64_t shingle_hash(std::string_view shingle, const MinHashShape& shape);

class MinHash {
 public:
  explicit MinHash(const MinHashShape& shape);

  const MinHashShape& shape() const { return shape_; }
  // h = (a x + b) mod 2^64 mod (2^61 - 1), where x is the hash of a shingle.
  std::span<const std::uint64_t> a() const { return {a_.data(), values_}; }
  std::span<const std::uint64_t> b() const { return {b_.data(), values_}; }

  struct Scratch {
    DedupText text;
    std::vector<std::uint64_t> hashes;
  };
  // The minimum of each hash over all shingles, band by band. False: the text is shorter than one.
  bool signature(std::string_view text, Scratch& scratch,
                 std::vector<std::uint64_t>& signature) const;

 private:
  void hash_words(std::string_view text, Scratch& scratch) const;
  void hash_characters(std::string_view text, Scratch& scratch) const;

  MinHashShape shape_;
  std::size_t values_;
  std::vector<std::uint64_t> a_, b_;  // padded to whole vectors
};

// XXH3 with 128 bits, of texts that are compared as they are.
struct TextDigest {
  std::uint64_t high, low;
};
TextDigest text_digest(std::string_view text);

}  // namespace kintsugi
