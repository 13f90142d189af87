#include "train/step_metrics.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace kintsugi {
namespace {

using MetricJson = nlohmann::ordered_json;
using Combine = StepMetric::Combine;
constexpr auto kOmit = StepMetric::Missing::Omit;

std::optional<double> joules_per_token(const StepRecord& r) {
  if (!r.energy_j || r.step_tokens <= 0) return {};
  return *r.energy_j / static_cast<double>(r.step_tokens);
}

std::optional<double> straggler_ratio(const StepRecord& r) {
  return r.straggler ? std::optional(r.straggler->ratio) : std::nullopt;
}

StepMetric metric(const char* key, const char* tag, MetricNames::Prometheus prometheus,
                  const char* help, MetricSource source,
                  StepMetric::Missing missing = StepMetric::Missing::Null) {
  return {{key, tag, std::move(prometheus), help}, source, missing};
}

// JSON has no NaN and no infinity.
MetricJson json_of(double value) {
  return std::isfinite(value) ? MetricJson(value) : MetricJson(nullptr);
}
MetricJson json_of(std::int64_t value) { return value; }
MetricJson json_of(std::uint64_t value) { return value; }
MetricJson json_of(const std::string& text) { return text; }

// Calls `use` with the value; not at all if it is missing.
void visit_value(const StepMetric& metric, const StepRecord& record, const auto& use) {
  std::visit(
      [&](const auto source) {
        const auto& value = std::invoke(source, record);
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::string>) {
          if (!value.empty()) use(value);
        } else if constexpr (std::is_arithmetic_v<Value>) {
          use(value);
        } else if (value) {
          use(*value);
        }
      },
      metric.source);
}

}  // namespace

const std::vector<StepMetric>& step_metrics() {
  using R = StepRecord;
  static const std::vector<StepMetric> metrics = {
      metric("step", "", {.name = "kintsugi_step_total", .combine = Combine::Highest},
             "Steps done; repeated steps count once.", &R::step),
      metric("time_s", "", {}, "", &R::time_s),
      metric("tokens", "train/tokens",
             {.name = "kintsugi_tokens_total", .combine = Combine::Highest},
             "Tokens trained, padding included; repeated steps count once.", &R::tokens),
      metric("targets", "train/targets", {"kintsugi_targets"},
             "Tokens of the last step that have a loss.", &R::targets),
      metric("loss", "train/loss", {"kintsugi_loss"}, "Loss of the last step, nats per token.",
             &R::loss),
      metric("grad_norm", "train/grad_norm", {"kintsugi_gradient_norm"},
             "Gradient norm of the last step, before clipping.", &R::gradient_norm),
      metric("lr", "train/lr", {"kintsugi_learning_rate"}, "Learning rate of the last step.",
             &R::lr),
      metric("loss_scale", "train/loss_scale", {"kintsugi_loss_scale"},
             "Loss scale of the last step.", &R::loss_scale),
      metric("step_time_s", "speed/step_time_s", {"kintsugi_step_seconds"},
             "Time of the last step.", &R::step_time_s),
      metric("data_wait_s", "speed/data_wait_s", {"kintsugi_data_wait_seconds"},
             "Time in which the last step waited for tokens.", &R::data_wait_s),
      metric("tokens_per_s", "speed/tokens_per_s", {"kintsugi_tokens_per_second"},
             "Tokens of the last step divided by its time.", &R::tokens_per_s),
      metric("mfu", "speed/mfu", {"kintsugi_mfu_ratio", "attention", "causal"},
             "Model FLOP utilization of the last step, by how attention is counted.",
             &R::mfu_causal),
      metric("mfu_full_attention", "speed/mfu_full_attention",
             {"kintsugi_mfu_ratio", "attention", "full"},
             "Model FLOP utilization of the last step, by how attention is counted.", &R::mfu_full),
      metric("memory_bytes", "memory/bytes", {"kintsugi_memory_bytes"},
             "Memory of the run on rank 0.", &R::memory_bytes),
      metric("energy_j", "energy/step_j", {}, "", &R::energy_j),
      metric("energy_gpu_j", "energy/gpu_j", {}, "", &R::energy_gpu_j),
      metric("energy_node_j", "energy/node_j", {}, "", &R::energy_node_j),
      metric("power_w", "energy/power_w", {"kintsugi_power_watts"},
             "Power of the best known level.", &R::power_w),
      metric("", "energy/j_per_token", {}, "", joules_per_token),
      metric("energy_scope", "", {}, "", &R::energy_scope, kOmit),
      metric("skipped", "", {}, "", &R::skipped, kOmit),
      metric("fp8_amax", "fp8/amax", {"kintsugi_fp8_amax"},
             "Largest magnitude that was quantized to fp8.", &R::fp8_amax, kOmit),
      metric("fp8_underflow", "fp8/underflow", {"kintsugi_fp8_underflow_ratio"},
             "Largest fraction of the operand of an fp8 matmul that became 0.", &R::fp8_underflow,
             kOmit),
      metric(
          "fp8_saturated", "fp8/saturated", {"kintsugi_fp8_saturated_ratio"},
          "Largest fraction of the operand of an fp8 matmul that became the largest number of fp8.",
          &R::fp8_saturated, kOmit),
      metric("expert_load", "experts/load", {"kintsugi_expert_load_ratio"},
             "Load of the busiest expert divided by the mean, in the layer where it is largest.",
             &R::expert_load, kOmit),
      metric(
          "expert_entropy", "experts/entropy", {"kintsugi_expert_entropy_ratio"},
          "Entropy of the choice of experts divided by that of an even choice, in the layer where "
          "it is least.",
          &R::expert_entropy, kOmit),
      metric("stage", "", {}, "", &R::stage, kOmit),
      metric("batch", "train/batch", {"kintsugi_batch_sequences"},
             "Sequences of the last step, with a batch ramp.", &R::batch, kOmit),
      metric("comm_busy_s", "speed/comm_busy_s", {"kintsugi_communication_busy_seconds"},
             "Time of the last step with communication under way, on rank 0.", &R::comm_busy_s,
             kOmit),
      metric("comm_wait_s", "speed/comm_wait_s", {"kintsugi_communication_wait_seconds"},
             "Time in which the last step waited for communication, on rank 0.", &R::comm_wait_s,
             kOmit),
      metric("comm_bytes", "speed/comm_bytes", {"kintsugi_communication_bytes"},
             "Bytes that rank 0 sent in the last step.", &R::comm_bytes, kOmit),
      metric("", "speed/straggler_ratio", {"kintsugi_straggler_ratio"},
             "Compute time of the slowest rank divided by the median of all ranks.",
             straggler_ratio, kOmit),
      metric("valid_loss", "valid/loss", {"kintsugi_valid_loss"},
             "Loss of the last validation, nats per token.", &R::valid_loss, kOmit),
      metric("valid_bits_per_byte", "valid/bits_per_byte", {"kintsugi_valid_bits_per_byte"},
             "Bits per byte of the last validation.", &R::valid_bits_per_byte, kOmit),
      metric("valid_accuracy", "valid/accuracy", {"kintsugi_valid_accuracy_ratio"},
             "Accuracy of a classifier in the last validation.", &R::valid_accuracy, kOmit),
      metric("valid_macro_f1", "valid/macro_f1", {"kintsugi_valid_macro_f_score"},
             "Mean F1 over the labels of a classifier in the last validation.", &R::valid_macro_f1,
             kOmit),
      metric("valid_micro_f1", "valid/micro_f1", {"kintsugi_valid_micro_f_score"},
             "F1 over all documents of a classifier in the last validation: its accuracy.",
             &R::valid_micro_f1, kOmit)};
  return metrics;
}

std::optional<double> number_of(const StepMetric& metric, const StepRecord& record) {
  std::optional<double> number;
  visit_value(metric, record, [&](const auto& value) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>)
      number = static_cast<double>(value);
  });
  return number;
}

std::vector<std::pair<const MetricNames*, double>> named_values(const StepRecord& record) {
  std::vector<std::pair<const MetricNames*, double>> values;
  for (const ScalarValue& one : record.scalars) values.emplace_back(&one.of->names, one.value);
  for (const ScalarValue& one : record.valid_scalars)
    values.emplace_back(&one.of->valid, one.value);
  return values;
}

void add_metrics(nlohmann::ordered_json& json, const StepRecord& record) {
  for (const StepMetric& metric : step_metrics()) {
    if (metric.json.empty()) continue;
    if (metric.missing == StepMetric::Missing::Null) json[metric.json] = nullptr;
    visit_value(metric, record, [&](const auto& value) { json[metric.json] = json_of(value); });
  }
  for (const auto& [names, value] : named_values(record)) json[names->json] = json_of(value);
}

}  // namespace kintsugi
