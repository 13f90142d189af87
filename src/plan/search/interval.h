#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/search/planner.h"

namespace kintsugi {

// Kinds of predictions that are wrong by different amounts. The first that applies, from the end:
// mixtures of experts; layouts whose slowest stage waits for 40 % of the step (bubble and exposed
// communication); steps of less than a second; jobs of one node.
enum class StepKind : std::uint8_t { Nodes, Node, Short, Waiting, Mixture };
template <>
inline constexpr EnumWords<5> kEnumWords<StepKind> = {"several nodes", "one node", "short step",
                                                      "much waiting", "mixture of experts"};
StepKind step_kind(const PlanJob& job, const Evaluation& evaluation, const Machine& machine);

// How far measured step times were from predicted ones.
struct StepInterval {
  StepKind kind = StepKind::Nodes;
  std::int64_t rows = 0;
  // exp(|ln(measured / predicted)|) of 90 % of the rows is at most this.
  double within = 1;
  // Of two layouts of one job whose predictions differ by a larger factor, the one that is
  // predicted to be faster is the faster one in at least nine of ten cases.
  double apart = 1;

  std::string text() const;        // interval_text(within)
  std::string short_text() const;  // "14%", or "x2.9"
};

// The table that plan_accuracy --intervals writes (uncertainty/step_time.yaml).
struct StepIntervals {
  std::string learned = {};  // the date
  std::string from = {};     // which rows
  std::vector<StepInterval> kinds = {};

  const StepInterval& of(StepKind kind) const;
};
// UserError for unknown keys, values out of range, and kinds that are missing or given twice.
StepIntervals parse_step_intervals(const std::string& text, const std::string& source);
std::string to_yaml(const StepIntervals& intervals);
const StepIntervals& step_intervals();  // the built-in table

const StepInterval& interval_of(const Planner& planner, const Evaluation& evaluation);
// Whether the difference of two layouts of this job means something.
bool told_apart(const Planner& planner, const Evaluation& a, const Evaluation& b);

}  // namespace kintsugi
