#include "plan/search/interval.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/yaml_reader.h"
#include "plan/machines/descriptions.h"

namespace kintsugi {

template <class V>
void describe(V& v, StepInterval& i) {
  v("kind", i.kind);
  v("rows", i.rows, at_least(0));
  v("within", i.within, between(1, 1000));
  v("apart", i.apart, between(1, 1000));
}

template <class V>
void describe(V& v, StepIntervals& i) {
  v("learned", i.learned);
  v("from", i.from);
  v("kinds", i.kinds);
}

StepKind step_kind(const PlanJob& job, const Evaluation& e, const Machine& machine) {
  constexpr double kMuch = 0.4, kShort_s = 1;
  if (job.model.experts) return StepKind::Mixture;
  if (e.bubble + e.exposed_s() / e.step_s >= kMuch) return StepKind::Waiting;
  if (e.step_s < kShort_s) return StepKind::Short;
  return e.layout.ranks() > machine.node.gpus ? StepKind::Nodes : StepKind::Node;
}

std::string StepInterval::text() const { return interval_text(within); }

std::string StepInterval::short_text() const {
  return within < kLargeInterval ? fmt::format("{:.0f}%", 100 * (within - 1))
                                 : fmt::format("x{:.1f}", within);
}

const StepInterval& StepIntervals::of(StepKind kind) const {
  return *std::find_if(kinds.begin(), kinds.end(),
                       [&](const StepInterval& one) { return one.kind == kind; });
}

StepIntervals parse_step_intervals(const std::string& text, const std::string& source) {
  StepIntervals intervals;
  read_document(YamlDocument(text, source), intervals);
  for (std::size_t kind = 0; kind < kEnumWords<StepKind>.size(); ++kind)
    if (std::count_if(intervals.kinds.begin(), intervals.kinds.end(), [&](const StepInterval& one) {
          return one.kind == static_cast<StepKind>(kind);
        }) != 1)
      user_error("{}: '{}' must be given once", source, kEnumWords<StepKind>.at(kind));
  return intervals;
}

std::string to_yaml(const StepIntervals& intervals) {
  StepIntervals copy = intervals;
  YamlWriter writer;
  describe(writer, copy);
  return writer.text();
}

const StepIntervals& step_intervals() {
  static const StepIntervals intervals =
      parse_step_intervals(embedded_intervals().front().yaml, "uncertainty/step_time.yaml");
  return intervals;
}

const StepInterval& interval_of(const Planner& planner, const Evaluation& e) {
  return step_intervals().of(step_kind(planner.job(), e, planner.machine()));
}

bool told_apart(const Planner& planner, const Evaluation& a, const Evaluation& b) {
  const double apart = std::max(interval_of(planner, a).apart, interval_of(planner, b).apart);
  return std::max(a.step_s, b.step_s) > apart * std::min(a.step_s, b.step_s);
}

}  // namespace kintsugi
