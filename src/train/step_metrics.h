#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "train/step_record.h"

namespace kintsugi {

// Where a metric's value comes from. An empty string or optional is a missing value.
using MetricSource =
    std::variant<std::int64_t StepRecord::*, std::uint64_t StepRecord::*, double StepRecord::*,
                 std::optional<std::int64_t> StepRecord::*, std::optional<double> StepRecord::*,
                 std::string StepRecord::*, std::optional<double> (*)(const StepRecord&)>;

// A value of a step, and its name in each file; "": it is not in that file. A new metric is a line
// in step_metrics().
struct StepMetric {
  // How metrics.jsonl shows a missing value, and what Prometheus shows after one.
  enum class Missing {
    Null,  // as null; Prometheus shows nothing
    Omit,  // not at all; Prometheus shows the last value
  };
  // How Prometheus combines the values of all steps.
  enum class Combine { Last, Highest, Sum };

  std::string json;  // key in metrics.jsonl
  std::string tag;   // in TensorBoard
  struct Prometheus {
    std::string name = {};
    std::string label = {}, value = {};  // beside the label of the run
    Combine combine = Combine::Last;     // another one only for counters: NAME_total
  } prometheus;
  std::string help;  // the same in all metrics with the same Prometheus name
  MetricSource source;
  Missing missing = Missing::Null;
};

const std::vector<StepMetric>& step_metrics();

// Not for texts. NaN and infinity are values too.
std::optional<double> number_of(const StepMetric& metric, const StepRecord& record);
// Adds the metrics that have a key.
void add_metrics(nlohmann::ordered_json& json, const StepRecord& record);

}  // namespace kintsugi
