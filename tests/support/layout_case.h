#pragma once

#include <array>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "support/parallel_run.h"

namespace kintsugi {

// The factors of the equivalence tests' cases. The order keeps backtracking short: each rule can be
// checked soon after its first factor is chosen.
enum Factor : std::size_t {
  kPp,
  kChunks,
  kSchedule,
  kLayers,
  kMicroBatches,  // per step: gradients are accumulated over them
  kSplit,
  kTp,
  kHeads,
  kFamily,
  kSequenceParallel,
  kCp,
  kContext,
  kLength,
  kDp,
  kZero,
  kShardGroup,
  kExperts,  // data ranks with different experts
  kDispatch,
  kCapacity,  // of experts is limited
  kMicro,
  kUneven,  // the last micro-batch has one sequence less
  kDropout,
  kDocuments,
  kMasked,
  kRecompute,
  kRecomputeEvery,
  kOffload,
  kMuon,
  kPrecision,
  kSteps,
  kFactors
};
struct FactorLevels {
  const char* name;
  std::vector<std::string> names;  // of the values 0, 1, …; empty: the values are numbers
  std::vector<int> levels;         // values to test, the simplest first
};
const FactorLevels& levels_of(std::size_t factor);

// A layout and the training job.
struct LayoutCase {
  static constexpr int kOpen = -1;  // not yet chosen
  std::array<int, kFactors> values;

  LayoutCase();  // the simplest case
  int operator[](std::size_t factor) const { return values[factor]; }
  RankLayout layout() const;
  Training training() const;
  bool operator==(const LayoutCase&) const = default;
};
// "tp=2 cp=1 dp=2 pp=1 zero=3 family=bloom": the rank counts, and all values that are not the
// simplest.
std::string to_string(const LayoutCase& one);
LayoutCase parse_layout_case(std::string_view text);  // UserError
std::string command_for(const LayoutCase& one);       // shell command that runs this case

// Whether fit_layout accepts it, it needs at most 16 ranks, and every choice has an effect (no
// schedule without a pipeline).
bool valid(const LayoutCase& one);
// The same by independent rules, which also work for unfinished cases: false if no completion is
// valid. `affordable`: must also be small enough to run hundreds of cases.
bool may_become_valid(const LayoutCase& unfinished, bool affordable = true);

LayoutCase open_case();  // everything is open but the number of steps
// The order in which the levels of a factor are tried.
using LevelOrder = std::function<std::vector<int>(const LayoutCase& unfinished, std::size_t)>;
// Chooses the open factors by backtracking search; false: no valid case exists.
bool complete(LayoutCase& one, const LevelOrder& order);
// Draws a valid case. Each kind of parallelism is equally likely to get the most ranks.
LayoutCase draw_case(std::mt19937_64& random);
// A fixed set of valid cases that covers every possible pair of levels of two factors, and all
// triples of some factors. `impossible` receives the number of pairs that no valid case has.
std::vector<LayoutCase> covering_cases(int* impossible = nullptr);

// Simplifies a failing case by one factor at a time, or by two if one alone is not valid, as long
// as it still fails.
LayoutCase shrink(LayoutCase failing, const std::function<bool(const LayoutCase&)>& fails);

// The differences between a run and that of one process, which may have other micro-batches.
struct Comparison {
  double losses = 0, norms = 0, weights = 0;
  // fp32 runs: relative to the tolerance for rounding (rounding.h).
  double of_allowed_losses = 0, of_allowed_norms = 0;
  std::string complaint;  // empty: the same
};
Comparison compare_with_one_process(const LayoutCase& one);
// The report of a test: what is wrong, the simplest case that shows it, and the command that runs
// it.
std::string failure_report(const LayoutCase& one, const std::string& complaint);

}  // namespace kintsugi
