#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "train/step_record.h"

namespace kintsugi {

// Where a metric's value comes from. An empty string or optional is a missing value.
using MetricSource =
    std::variant<std::int64_t StepRecord::*, std::uint64_t StepRecord::*, double StepRecord::*,
                 std::optional<std::int64_t> StepRecord::*, std::optional<double> StepRecord::*,
                 std::string StepRecord::*, std::optional<double> (*)(const StepRecord&)>;

// A value of a step that every run has. A new one is a line in step_metrics(); what only some runs
// sum is a DeclaredScalar.
struct StepMetric : MetricNames {
  // How metrics.jsonl shows a missing value, and what Prometheus shows after one.
  enum class Missing {
    Null,  // as null; Prometheus shows nothing
    Omit,  // not at all; Prometheus shows the last value
  };

  MetricSource source;
  Missing missing = Missing::Null;
};

const std::vector<StepMetric>& step_metrics();

// Not for texts. NaN and infinity are values too.
std::optional<double> number_of(const StepMetric& metric, const StepRecord& record);
// The named scalars of a step and of its validation, each with its names.
std::vector<std::pair<const MetricNames*, double>> named_values(const StepRecord& record);
// Adds the metrics and the named scalars that have a key.
void add_metrics(nlohmann::ordered_json& json, const StepRecord& record);

}  // namespace kintsugi
