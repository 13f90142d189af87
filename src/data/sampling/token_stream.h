#pragma once

#include <cstdint>
#include <vector>

#include "data/stores/token_store.h"

namespace kintsugi {

// Some tokens of one shard, side by side.
struct TokenPiece {
  const TokenShard* shard = nullptr;
  std::int64_t first = 0, count = 0;
  bool operator==(const TokenPiece&) const = default;
};

// Pieces of shards, read as one row of tokens.
class TokenStream {
 public:
  TokenStream() = default;
  explicit TokenStream(std::vector<TokenPiece> parts);

  const std::vector<TokenPiece>& parts() const { return parts_; }
  std::int64_t tokens() const { return ends_.empty() ? 0 : ends_.back(); }
  // Appends where tokens first … first + count - 1 lie: one piece per part that they touch.
  void locate(std::int64_t first, std::int64_t count, std::vector<TokenPiece>& pieces) const;

 private:
  std::vector<TokenPiece> parts_;
  std::vector<std::int64_t> ends_;  // of each part, in the row
};

struct HeldOut {
  TokenStream train, valid;
};

// Keeps the last `valid_fraction` of the documents of each shard apart. Where that is less than one
// document (a text file is a single one) the last tokens are kept apart instead, so that any shard
// can be split.
HeldOut hold_out(const std::vector<TokenShard>& shards, double valid_fraction);

}  // namespace kintsugi
