#pragma once

#include <array>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "support/parallel_run.h"

namespace kintsugi {

// What the cases of the equivalence tests differ in. In this order a search for a valid case has
// little to take back: each rule is decided soon after its first factor.
enum Factor : std::size_t {
  kPp,
  kChunks,
  kSchedule,
  kLayers,
  kPasses,  // per step: gradients are accumulated over them
  kSplit,
  kTp,
  kHeads,
  kFamily,
  kSequenceParallel,
  kCp,
  kLength,
  kDp,
  kZero,
  kShardGroup,
  kMicro,
  kUneven,  // the last pass has a sequence less
  kDropout,
  kDocuments,
  kMasked,
  kRecompute,
  kRecomputeEvery,
  kOffload,
  kPrecision,
  kSteps,
  kFactors
};
struct FactorLevels {
  const char* name;
  std::vector<std::string> names;  // of the values 0, 1, …; empty: they are numbers
  std::vector<int> levels;         // that are tried, the simplest first
};
const FactorLevels& levels_of(std::size_t factor);

// A layout and what is trained in it.
struct LayoutCase {
  static constexpr int kOpen = -1;  // not yet chosen
  std::array<int, kFactors> values;

  LayoutCase();  // the simplest
  int operator[](std::size_t factor) const { return values[factor]; }
  RankLayout layout() const;
  Training training() const;
  bool operator==(const LayoutCase&) const = default;
};
// "tp=2 cp=1 dp=2 pp=1 zero=3 family=bloom": the extents, and what is not the simplest.
std::string to_string(const LayoutCase& one);
LayoutCase parse_layout_case(std::string_view text);  // UserError
std::string command_for(const LayoutCase& one);       // that runs it alone

// Accepted by fit_layout, on at most 16 ranks, and no choice without an effect (a schedule without
// a pipeline).
bool valid(const LayoutCase& one);
// The same from rules of our own, which can also tell that nothing makes an unfinished case valid.
// Beyond validity, `affordable`: small enough to be run by the hundred.
bool may_become_valid(const LayoutCase& unfinished, bool affordable = true);

LayoutCase open_case();  // with everything open but the number of steps
// In which order the levels of a factor are tried.
using LevelOrder = std::function<std::vector<int>(const LayoutCase& unfinished, std::size_t)>;
// Chooses what is open, with as much taken back as it needs; false: there is no such case.
bool complete(LayoutCase& one, const LevelOrder& order);
// Any valid case. Each kind of parallelism is as likely as the others to get the most ranks.
LayoutCase draw_case(std::mt19937_64& random);
// A fixed set of valid cases in which every two levels of different factors meet that meet in any,
// and some that entangle by threes; the number of pairs that no valid case has goes to
// `impossible`.
std::vector<LayoutCase> covering_cases(int* impossible = nullptr);

// The simplest case that still fails and is found by making one factor simpler at a time, or two
// where one alone is not valid.
LayoutCase shrink(LayoutCase failing, const std::function<bool(const LayoutCase&)>& fails);

// How far a run is from that of one process, which works in passes of its own.
struct Comparison {
  double losses = 0, norms = 0, weights = 0;
  // Of an fp32 run: as parts of what rounding allows (rounding.h).
  double of_allowed_losses = 0, of_allowed_norms = 0;
  std::string complaint;  // empty: the same
};
Comparison compare_with_one_process(const LayoutCase& one);
// As a test says it: what is wrong, the simplest case that shows it, and the command for that.
std::string failure_report(const LayoutCase& one, const std::string& complaint);

}  // namespace kintsugi
