#include "train/trainer/expert_loads.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/log.h"

namespace kintsugi {
namespace {

constexpr double kIdle = 0.01;  // of the mean load

}  // namespace

ExpertLoad load_of(std::span<const double> counts) {
  const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
  const auto experts = static_cast<double>(counts.size());
  if (sum == 0 || counts.size() < 2) return {.most = 1, .entropy = 1};
  ExpertLoad load{.most = *std::ranges::max_element(counts) * experts / sum};
  for (const double count : counts) {
    if (count > 0) load.entropy -= count / sum * std::log(count / sum) / std::log(experts);
    if (count < kIdle * sum / experts) ++load.idle;
  }
  return load;
}

bool ExpertLoads::are_due(std::int64_t step) const {
  const std::int64_t every = run_.config.model.balance.statistics_every;
  return run_.config.model.experts && every > 0 && step % every == 0;
}

void ExpertLoads::after_step(const StepResult& result, std::int64_t step) {
  const bool balances = run_.engine->balances_experts() && !result.skipped();
  if (!balances && !are_due(step)) return;
  const std::vector<double> counts = run_.engine->total_expert_counts();
  if (balances) run_.engine->balance_experts(counts);
  if (balances && run_.config.model.balance.counts_last_step()) run_.state.expert_counts = counts;
  if (are_due(step)) record(counts, run_.engine->total_dropped_choices());
}

void ExpertLoads::record(std::span<const double> counts, std::span<const double> dropped) {
  const ModelConfig& model = run_.config.model;
  const auto experts = static_cast<std::size_t>(model.experts->count);
  nlohmann::ordered_json line = {{"step", run_.record.step}};
  run_.record.expert_load = 0;
  run_.record.expert_entropy = 1;
  std::int64_t most_idle = 0, worst = 0;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    if (!model.has_experts(layer)) continue;
    const auto of_layer = counts.subspan(static_cast<std::size_t>(layer) * experts, experts);
    const ExpertLoad load = load_of(of_layer);
    line["layers"].push_back({{"layer", layer},
                              {"max_load", load.most},
                              {"entropy", load.entropy},
                              {"idle", load.idle},
                              {"choices", of_layer}});
    if (!dropped.empty())
      line["layers"].back()["dropped"] = dropped[static_cast<std::size_t>(layer)];
    run_.record.expert_load = std::max(*run_.record.expert_load, load.most);
    run_.record.expert_entropy = std::min(*run_.record.expert_entropy, load.entropy);
    if (load.idle > most_idle) most_idle = load.idle, worst = layer;
  }
  if (!run_.is_first()) return;
  run_.log->files().add_experts(line.dump() + "\n");
  if (2 * most_idle < model.experts->count || warned_) return;
  warned_ = true;
  const bool biased = model.balance.bias_speed > 0;
  log_warning(
      "step {}: {} of the {} experts of layer {} have hardly any tokens: raise train.balance.{} "
      "(now {:g}), or train.balance.z_loss if the logits of the router grow",
      run_.record.step, most_idle, model.experts->count, worst, biased ? "bias_speed" : "loss",
      biased ? model.balance.bias_speed : model.balance.loss);
}

}  // namespace kintsugi
