#pragma once

#include <string>
#include <vector>

namespace kintsugi {

// The slowest rank of a job.
struct Straggler {
  int rank = 0;
  std::string node = {};
  double ratio = 1;  // its time divided by the median of all ranks
};
inline constexpr double kStragglerRatio = 1.2;  // from here on it is reported

// From the time in which each rank computed, by rank. The lowest of equal ranks.
Straggler slowest_rank(const std::vector<double>& seconds);

}  // namespace kintsugi
