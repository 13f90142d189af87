#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/config.h"
#include "optim/optimizer.h"
#include "parallel/layout.h"

namespace kintsugi {

// Assumed of trained routers. Models of arXiv 2408.15664 with a balance loss had 1.5 to 1.6
// (recalled).
inline constexpr double kUsualImbalance = 1.5;

// Assumed: noticing, starting the ranks on other nodes, and joining them.
inline constexpr double kUsualRestart = 120;
inline constexpr double kUsualRepair = 86400;  // assumed: once per day

// What is trained, independent of the layout.
struct PlanJob {
  ModelConfig model = {};
  std::int64_t length = 0;  // tokens per sequence
  std::int64_t batch = 0;   // sequences per step
  DType precision = DType::BF16;
  bool reduce_in_bf16 = false;
  bool documents = false;
  // Choices of the busiest expert of a layer, relative to the mean (the metric expert_load). 1: a
  // benchmark that forces routers to choose all experts alike.
  double imbalance = kUsualImbalance;
  OptimizerSettings optimizer = {};
  std::int64_t classifier_elements = std::int64_t{1} << 28;  // Backend::classifier_elements

  std::int64_t classifier_chunk = 0;  // tokens of logits at a time; 0: chosen by the backend
  double z_loss = 0;                  // train.z_loss
  std::optional<PreferenceOptions> preference = {};  // objective dpo
  bool weights = false;                              // EngineOptions::weights
  bool skip_step = false;                            // optimizer.skip_step is on
  std::int64_t checkpoint_every = 0;                 // steps; 0: never
  bool best_checkpoints = false;  // instead, as often as is best with failures of nodes (mtbf_h)
  double save_s = 0;  // training waits for a checkpoint; 0: as the machine's storage needs
  double restart_s = kUsualRestart;  // from a failure to the first step, without reading weights
  double repair_s = kUsualRepair;    // between repairs of nodes

  double tokens() const { return static_cast<double>(batch) * static_cast<double>(length); }
};

// "bf16", or "fp8" if some matmuls are in fp8 (train.fp8): the word of `plan --precision`.
std::string_view precision_word(const PlanJob& job);
// All settings of train.fp8 that are not the defaults, as in YAML: "{recipe: rowwise}". The text of
// equal settings is equal.
std::string fp8_yaml(const Fp8Config& fp8);

inline Workload workload_of(const PlanJob& job) { return {job.model, job.batch, job.length}; }

}  // namespace kintsugi
