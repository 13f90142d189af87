#include "optim/update_plan.h"

#include <algorithm>

namespace kintsugi {

std::vector<UpdatePiece> plan_updates(const Sharding& sharding,
                                      const std::vector<std::int64_t>& offsets,
                                      std::int64_t state_elements, std::int64_t most) {
  std::vector<UpdatePiece> pieces;
  for (std::int64_t first = 0; first < state_elements; first += most)
    pieces.push_back({first, std::min(most, state_elements - first), {}});
  const std::vector<Bucket>& buckets = sharding.set().buckets();
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const int bucket = static_cast<int>(b);
    const Sharding::Range mine = sharding.owned(bucket);
    const Tensor weights = sharding.owned_weights(bucket),
                 gradients = sharding.owned_gradients(bucket);
    // Elements [begin, end) of the bucket as far as they are this rank's, cut where pieces end.
    const auto add = [&](std::int64_t begin, std::int64_t end, bool decays) {
      end = std::min(end, mine.end);
      for (std::int64_t from = std::max(begin, mine.begin); from < end;) {
        const std::int64_t at = offsets[b] + from - mine.begin;
        const std::int64_t count = std::min(end - from, most - at % most);
        pieces[static_cast<std::size_t>(at / most)].ranges.push_back(
            {.weight = weights.rows(from - mine.begin, count),
             .gradient = gradients.rows(from - mine.begin, count),
             .at = at,
             .first_element = from,
             .decays = decays});
        from += count;
      }
    };
    add(buckets[b].begin, buckets[b].decay_end, true);
    add(buckets[b].decay_end, buckets[b].end, false);
  }
  return pieces;
}

}  // namespace kintsugi
