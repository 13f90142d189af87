#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/trainer/run_context.h"

namespace kintsugi {

inline constexpr double kStragglerRatio = 1.2;  // from here on a slow rank is reported
// From the time in which each rank computed, by rank. The lowest of equal ranks.
Straggler slowest_rank(const std::vector<double>& seconds);

// Compares the bits of the weights that several ranks hold: those of data-parallel replicas (with
// ZeRO 0 to 2 all data ranks, with ZeRO 3 the ranks with the same shard) and of parameters that
// tensor ranks hold copies of. Returns "" or which ranks and nodes differ in which parameter, the
// same text on all ranks. All ranks call it. A rank copies its stored weights to the host and
// hashes them; the ranks exchange 24 bytes each.
std::string differing_replicas(Engine& engine);

// Looks for ranks that are slow, or whose weights differ from those of their replicas.
class RankChecks {
 public:
  explicit RankChecks(RunContext& run) : run_(run) {}

  void note_step();  // run.record
  // All ranks call these after each step. `step_s`: the mean time of a step.
  void find_straggler(double step_s);
  void check_replicas(bool saves);  // also before each save

 private:
  RunContext& run_;
  double compute_s_ = 0;  // of this rank since the last find_straggler()
  std::int64_t compute_steps_ = 0;
};

}  // namespace kintsugi
