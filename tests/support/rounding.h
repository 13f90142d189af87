#pragma once

#include <string>
#include <vector>

#include "support/parallel_run.h"

namespace kintsugi {

// How far rounding alone takes the fp32 runs of a case: the largest distance of one-process runs
// from the same run in fp64, by step. Some cases amplify a rounding a hundred times (a norm over
// two small numbers does), and all of them do with every step; so it is measured, not assumed.
class Rounding {
 public:
  explicit Rounding(Outcome fp64);
  void add(const Outcome& fp32);

  // How much of what it may be off a run that should be `expected` is off: within 1 the two are the
  // same.
  struct Distance {
    double losses = 0, norms = 0;
  };
  Distance distance(const Outcome& actual, const Outcome& expected) const;
  // Empty: they are the same.
  std::string complaint(const Outcome& actual, const Outcome& expected) const;

  // What a run may be off, by step: losses absolutely (relatively above 1), norms relatively.
  double loss_tolerance(std::size_t i) const { return tolerance(losses_.at(i)); }
  double norm_tolerance(std::size_t i) const { return tolerance(norms_.at(i)); }

 private:
  static double tolerance(double rounding);

  Outcome fp64_;
  std::vector<double> losses_, norms_;
};

}  // namespace kintsugi
