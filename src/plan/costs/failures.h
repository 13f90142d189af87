#pragma once

#include <cstdint>

namespace kintsugi {

// A run on nodes that fail independently and at random, as a Poisson process. It continues from its
// last checkpoint. Times in seconds.
struct FailingRun {
  double mtbf_s = 0;     // mean time between failures of all its nodes together
  double save_s = 0;     // training pauses for a checkpoint
  double restart_s = 0;  // from a failure until training continues; may fail too
};

// The time of training between two checkpoints that costs least: Daly 2006, equation 37. For short
// saves close to Young's sqrt(2 save mtbf).
double best_interval_s(const FailingRun& run);

// The expected time of a stretch of training that ends with a checkpoint: Daly 2006, equation 20.
struct ExpectedTime {
  double trained_s = 0;    // training and saving, also what is lost and done again
  double restarted_s = 0;  // restarts
  double total_s() const { return trained_s + restarted_s; }
};
ExpectedTime expected_time(const FailingRun& run, double interval_s);

// The number of spare nodes that replace all nodes that fail until repairs, with this probability.
std::int64_t spare_nodes(double failures_until_repairs, double probability);

}  // namespace kintsugi
