#pragma once

#include <cstdint>
#include <vector>

#include "core/hash.h"
#include "data/stores/token_store.h"

namespace kintsugi {

// Consecutive tokens of one shard.
struct TokenRange {
  const TokenShard* shard = nullptr;
  std::int64_t first = 0, count = 0;
  bool operator==(const TokenRange&) const = default;
};

// Concatenated ranges of shards, addressed as one sequence of tokens.
class TokenStream {
 public:
  TokenStream() = default;
  explicit TokenStream(std::vector<TokenRange> parts);

  const std::vector<TokenRange>& parts() const { return parts_; }
  std::int64_t tokens() const { return ends_.empty() ? 0 : ends_.back(); }
  // Appends the ranges that hold tokens first … first + count - 1: one for each part they touch.
  void locate(std::int64_t first, std::int64_t count, std::vector<TokenRange>& ranges) const;

 private:
  std::vector<TokenRange> parts_;
  std::vector<std::int64_t> ends_;  // of each part, in tokens of the stream
};

// Adds what determines the tokens of a stream: the fingerprints of its shards and the ranges.
void add_parts(const TokenStream& stream, StreamHash& hash);

struct HeldOut {
  TokenStream train, valid;
};

// Holds out the last `valid_fraction` of the documents of each shard for validation. If that is
// less than one document (a text file is a single document), the last tokens are held out instead.
HeldOut hold_out(const std::vector<TokenShard>& shards, double valid_fraction);
// The same for examples: whole documents, spread evenly over each shard, which may be sorted by
// label. At least one of two documents or more, in at most 512 ranges.
HeldOut hold_out_examples(const std::vector<TokenShard>& shards, double valid_fraction);

}  // namespace kintsugi
