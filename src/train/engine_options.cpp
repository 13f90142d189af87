#include "train/engine_options.h"

#include "train/memory_check.h"

namespace kintsugi {

Workload workload_of(const StageConfig& config) {
  return {.model = config.model,
          .batch = config.batch.global,
          .length = config.data.sequence_length,
          .ramp_start = config.batch.ramp.start,
          .ramp_increment = config.batch.ramp.increment};
}

Layout layout_on(const StageConfig& config, int ranks) {
  return fit_layout(config.layout, workload_of(config), ranks);
}

namespace {

MuonSettings muon_settings(const OptimizerConfig& optimizer) {
  const MuonConfig& muon = optimizer.muon;
  return {.momentum = muon.momentum,
          .nesterov = muon.nesterov,
          .steps = muon.steps,
          .adjust_lr = muon.adjust_lr,
          .lr_factor = muon.lr > 0 ? muon.lr / optimizer.lr : 1.0,
          .precision = muon.precision};
}

}  // namespace

OptimizerSettings optimizer_settings(const StageConfig& config) {
  const OptimizerConfig& optimizer = config.optimizer;
  return {.kind = optimizer.kind,
          .beta1 = optimizer.betas[0],
          .beta2 = optimizer.betas[1],
          .eps = optimizer.eps,
          .weight_decay = optimizer.weight_decay,
          .decay_embeddings = optimizer.decay_embeddings,
          .clip = optimizer.clip,
          .moments = optimizer.moments,
          .stochastic_rounding = optimizer.stochastic_rounding,
          .seed = config.run.seed,
          .muon = muon_settings(optimizer),
          .ema = config.train.ema};
}

std::optional<PreferenceOptions> preference_options(const StageConfig& config) {
  const ObjectiveConfig& objective = config.objective;
  if (objective.kind != ObjectiveKind::Dpo) return {};
  return PreferenceOptions{.beta = objective.beta, .label_smoothing = objective.label_smoothing};
}

EngineOptions engine_options(const StageConfig& config, int ranks) {
  return {.model = config.model,
          .precision = config.train.precision,
          .layout = layout_on(config, ranks),
          .batch = config.batch.global,
          .length = config.data.sequence_length,
          .classifier_chunk = config.train.classifier_chunk,
          .z_loss = config.train.z_loss,
          .preference = preference_options(config),
          .skip_step = config.optimizer.skip_step.deviations > 0,
          .optimizer = optimizer_settings(config),
          .offload = {.on = config.offload.optimizer,
                      .gradients = config.offload.gradients,
                      .update = config.offload.update},
          .offload_inputs = config.offload.activations,
          .documents = config.data.document_mask,
          .weights = config.objective.class_weights.given(),
          .reduce_in_bf16 = config.comm.reduce == DType::BF16};
}

Layout automatic_layout(const StageConfig& config, Backend& backend, int ranks, int node) {
  StageConfig tried = config;
  const auto fits = [&](const Layout& layout) {
    tried.layout = layout;
    const Grid grid = grid_of(layout, config.model);
    for (int stage = 0; stage < grid.pp; ++stage) {
      const Groups groups = planned_groups(grid, {.pp = stage});
      if (!kintsugi::fits(planned_memory(backend, tried, groups), backend, node)) return false;
    }
    return true;
  };
  return choose_layout(config.layout, workload_of(config), ranks, node, fits);
}

}  // namespace kintsugi
