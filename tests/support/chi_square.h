#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace kintsugi {

// How many standard deviations Pearson's statistic is above its mean, for counts that should follow
// `probability`. Uses the Wilson-Hilferty cube root, which is accurate in the tail even for few
// cells. Every cell should have an expected count of at least 5. The tests draw with fixed seeds,
// so a limit of 5 is never flaky.
inline double chi_square_deviation(const std::vector<double>& counts,
                                   const std::vector<double>& probability) {
  double total = 0, statistic = 0;
  for (const double count : counts) total += count;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = total * probability[i];
    statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  const auto freedom = static_cast<double>(counts.size() - 1);
  const double spread = 2 / (9 * freedom);
  return (std::cbrt(statistic / freedom) - (1 - spread)) / std::sqrt(spread);
}

inline double uniform_deviation(const std::vector<double>& counts) {
  return chi_square_deviation(
      counts, std::vector<double>(counts.size(), 1.0 / static_cast<double>(counts.size())));
}

}  // namespace kintsugi
