#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/step_scalars.h"
#include "energy/energy_totals.h"

namespace kintsugi {

// The slowest rank of a job.
struct Straggler {
  int rank = 0;
  std::string node = {};
  double ratio = 1;  // its time divided by the median of all ranks
};

// The metrics of one step.
struct StepRecord {
  std::int64_t step = 0;
  double time_s = 0;                       // when it was done, in seconds since 1970
  std::int64_t tokens = 0;                 // positions since the start of the run, padding included
  std::int64_t step_tokens = 0;            // of this step, padding included
  std::int64_t targets = 0;                // of this step: tokens with a loss
  std::optional<std::int64_t> batch = {};  // sequences of this step; only with a batch ramp
  double loss = 0;
  ScalarValues scalars = {};  // what objectives, layers and update rules declare
  // Only with train.fp8, now and then: the largest magnitude that was quantized, and the largest
  // fractions of a matmul's operand that became 0, or the largest number of fp8.
  std::optional<double> fp8_amax = {}, fp8_underflow = {}, fp8_saturated = {};
  // Only of models with experts, now and then, and of the layer with the largest or least: the load
  // of the busiest expert divided by the mean, and the entropy of the choices divided by the most.
  std::optional<double> expert_load = {}, expert_entropy = {};
  double gradient_norm = 0;
  std::string skipped = {};  // why the update was not applied: "not finite" or "outlier"
  double lr = 0;
  double loss_scale = 1;
  double step_time_s = 0;
  double data_wait_s = 0;  // part of step_time_s spent waiting for the next batch
  // Only with several ranks, measured on rank 0: time with communication in flight, and time in
  // which the step waited for it.
  std::optional<double> comm_busy_s = {}, comm_wait_s = {};
  std::optional<std::int64_t> comm_bytes = {};  // sent by rank 0
  std::optional<Straggler> straggler = {};      // now and then, with several ranks
  double tokens_per_s = 0;
  std::optional<double> mfu_causal = {}, mfu_full = {};  // empty: the peak is unknown
  std::string stage = {};                                // empty: the run has no stages
  std::uint64_t memory_bytes = 0;
  // Joules of this step on all nodes, and the mean power since the last step; empty: not metered.
  // energy_j and power_w are of the best metered level, which energy_scope names: "node", "gpu" or
  // "cpu".
  std::optional<double> energy_j = {}, energy_gpu_j = {}, energy_node_j = {}, power_w = {};
  std::string energy_scope = {};
  std::optional<ByLevel<LevelAmount>> energy_since_launch = {};  // of this attempt
  std::optional<double> valid_loss = {};                         // nats per token
  std::optional<double> valid_bits_per_byte = {};
  // Classifiers only; micro F1 is the accuracy.
  std::optional<double> valid_accuracy = {}, valid_macro_f1 = {}, valid_micro_f1 = {};
  ScalarValues valid_scalars = {};  // those that are recorded in a validation too
  struct Valid {
    std::string name;
    double loss = 0;
    std::optional<double> bits_per_byte;
    std::optional<double> accuracy = {}, macro_f1 = {};
  };
  std::vector<Valid> valid = {};  // one entry per validation set
  // One metric of a task or a group (train.eval_tasks).
  struct TaskMetric {
    std::string task, metric;
    double value = 0;
    std::optional<double> stderr_of_mean;
  };
  std::vector<TaskMetric> tasks = {};
};

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
