#include "data/sampling/token_stream.h"

#include <algorithm>

#include "core/error.h"

namespace kintsugi {

TokenStream::TokenStream(std::vector<TokenPiece> parts) {
  std::int64_t end = 0;
  for (const TokenPiece& part : parts) {
    if (part.count == 0) continue;
    parts_.push_back(part);
    ends_.push_back(end += part.count);
  }
}

void TokenStream::locate(std::int64_t first, std::int64_t count,
                         std::vector<TokenPiece>& pieces) const {
  KINTSUGI_CHECK(first >= 0 && count >= 0 && first + count <= tokens(), "tokens {} + {} of {}",
                 first, count, tokens());
  auto part =
      static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), first) - ends_.begin());
  for (; count > 0; ++part) {
    const std::int64_t left = ends_[part] - first;
    const std::int64_t taken = std::min(count, left);
    const TokenPiece& whole = parts_[part];
    pieces.push_back({whole.shard, whole.first + whole.count - left, taken});
    first += taken;
    count -= taken;
  }
}

HeldOut hold_out(const std::vector<TokenShard>& shards, double valid_fraction) {
  const auto fraction_of = [&](std::int64_t count) {
    return static_cast<std::int64_t>(static_cast<double>(count) * valid_fraction);
  };
  std::vector<TokenPiece> train, valid;
  for (const TokenShard& shard : shards) {
    const std::int64_t documents = fraction_of(shard.documents());
    const std::int64_t cut = documents > 0 ? shard.document_begin(shard.documents() - documents)
                                           : shard.tokens() - fraction_of(shard.tokens());
    train.push_back({&shard, 0, cut});
    valid.push_back({&shard, cut, shard.tokens() - cut});
  }
  return {TokenStream(std::move(train)), TokenStream(std::move(valid))};
}

}  // namespace kintsugi
