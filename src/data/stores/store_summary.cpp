#include "data/stores/store_summary.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/error.h"

namespace kintsugi {
namespace {

template <class Visit>
void each_length(const std::vector<TokenShard>& shards, Visit visit) {
  for (const TokenShard& shard : shards) {
    std::int64_t begin = shard.document_begin(0);
    for (std::int64_t d = 0; d < shard.documents(); ++d) {
      const std::int64_t end = shard.document_begin(d + 1);
      if (end < begin)
        user_error("{}.idx: document {} ends before it starts; run kintsugi data verify",
                   shard.name(), d);
      visit(end - begin);
      begin = end;
    }
  }
}

// The k-th smallest length without storing all lengths: first finds the power of two, then refines
// the interval with histograms.
std::int64_t kth_length(const std::vector<TokenShard>& shards, const LengthSummary& summary,
                        std::int64_t k) {
  std::size_t bucket = 0;
  while (k >= summary.by_log2[bucket]) k -= summary.by_log2[bucket++];
  if (bucket == 0) return 0;
  std::int64_t low = std::int64_t{1} << (bucket - 1), high = low * 2;  // result in [low, high)
  constexpr std::size_t kBins = 4096;
  while (high - low > 1) {
    const std::int64_t width = std::max<std::int64_t>((high - low) / kBins, 1);
    std::vector<std::int64_t> counts(static_cast<std::size_t>((high - low + width - 1) / width));
    each_length(shards, [&](std::int64_t length) {
      if (length >= low && length < high)
        ++counts[static_cast<std::size_t>((length - low) / width)];
    });
    std::size_t bin = 0;
    while (k >= counts[bin]) k -= counts[bin++];
    low += static_cast<std::int64_t>(bin) * width;
    high = std::min(high, low + width);
  }
  return low;
}

}  // namespace

LengthSummary summarize_lengths(const std::vector<TokenShard>& shards) {
  LengthSummary summary;
  summary.shortest = std::numeric_limits<std::int64_t>::max();
  std::int64_t documents = 0;
  each_length(shards, [&](std::int64_t length) {
    ++documents;
    summary.shortest = std::min(summary.shortest, length);
    summary.longest = std::max(summary.longest, length);
    ++summary.by_log2[static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(length)))];
  });
  if (documents == 0) summary.shortest = 0;
  if (documents > 0) summary.median = kth_length(shards, summary, documents / 2);
  return summary;
}

}  // namespace kintsugi
