#include "train/stragglers.h"

#include <algorithm>

#include "core/statistics.h"

namespace kintsugi {

Straggler slowest_rank(const std::vector<double>& seconds) {
  if (seconds.empty()) return {};
  const auto slowest = std::max_element(seconds.begin(), seconds.end());
  const double middle = median(seconds);
  return {.rank = static_cast<int>(slowest - seconds.begin()),
          .ratio = middle > 0 ? *slowest / middle : 1.0};
}

}  // namespace kintsugi
