#pragma once

#include <string>
#include <vector>

#include "parallel/layout.h"

namespace kintsugi {

// The trainings of an acceptance test: which model in which layout.

// Trained for a few steps, and compared with one rank that trains the same.
struct LossCase {
  std::string name = {};   // "tp 2", or all that is special: "tp 2, zero 3, full recompute"
  std::string group = {};  // the kind of group that a difference points to; empty: of several
  bool experts = false, muon = false;
  Layout layout = {};
};
// The small models of these cases: a section `model`.
std::string small_model_yaml(bool experts);
inline constexpr std::int64_t kSmallLength = 64;  // tokens per sequence
std::int64_t small_batch(int ranks);              // sequences per step

// One case for each kind of group and each schedule, as far as the number of ranks allows.
// `node_ranks`: of each node.
std::vector<LossCase> group_cases(int ranks, int node_ranks);
// Cases in which every two values of layout, model and optimizer meet that can, except those that
// meet in `others`.
std::vector<LossCase> pair_cases(int ranks, const std::vector<LossCase>& others);
// How many pairs of values `cases` have, and how many there are on this number of ranks.
struct PairCount {
  std::size_t covered = 0, possible = 0;
};
PairCount count_pairs(int ranks, const std::vector<LossCase>& cases);

// Layouts in which step times are compared with the plan; empty `why_not`: it can run.
struct SpeedCase {
  std::string name = {};
  Layout layout = {};
  std::string why_not = {};
};
std::vector<SpeedCase> speed_cases(int ranks, int node_ranks, const Workload& work);
std::int64_t speed_batch(int ranks);  // sequences per step

}  // namespace kintsugi
