#pragma once

#include <string>
#include <vector>

#include "support/parallel_run.h"

namespace kintsugi {

// Measures the effect of rounding on the fp32 runs of a case: the largest difference, by step,
// between one-process runs and the same run in fp64. Some cases amplify a rounding error a hundred
// times (for example a norm over two small numbers), and the error grows with every step, so it is
// measured.
class Rounding {
 public:
  explicit Rounding(Outcome fp64);
  void add(const Outcome& fp32);

  // The largest difference divided by the tolerance: up to 1, the two runs count as the same.
  struct Distance {
    double losses = 0, norms = 0;
  };
  Distance distance(const Outcome& actual, const Outcome& expected) const;
  // Empty: they are the same.
  std::string complaint(const Outcome& actual, const Outcome& expected) const;

  // The tolerance by step: absolute for losses (relative above 1), relative for norms.
  double loss_tolerance(std::size_t i) const { return tolerance(losses_.at(i)); }
  double norm_tolerance(std::size_t i) const { return tolerance(norms_.at(i)); }

 private:
  static double tolerance(double rounding);

  Outcome fp64_;
  std::vector<double> losses_, norms_;
};

}  // namespace kintsugi
