#include "train/trainer/step_guard.h"

#include <fmt/format.h>

#include <cmath>

#include "core/log.h"

namespace kintsugi {

StepGuard::StepGuard(const RunConfig& config)
    : outliers_(config.optimizer.skip_step), spikes_(config.train.spikes) {
  if (config.train.precision == DType::F16) scaler_ = LossScaler(config.train.loss_scale);
  health_ =
      RunHealth(config.train.max_skipped_steps,
                scaler_.dynamic() ? std::optional(config.train.loss_scale.minimum) : std::nullopt);
}

void StepGuard::after_step(Engine& engine, const StepResult& result, const StepLimits& limits,
                           StepRecord& record) {
  divergence_ = health_.after_step(engine, result, scaler_.scale());
  note_skipped(result, limits, record, engine.groups().is_first());
  outliers_.add(result.loss, result.gradient_norm);
  spike_ = result.outlier ? "" : find_spike(result.loss);
  spikes_.add(result.loss);
  scaler_.update(!std::isfinite(result.gradient_norm));
}

void StepGuard::note_skipped(const StepResult& result, const StepLimits& limits, StepRecord& record,
                             bool is_first) const {
  if (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm))
    record.skipped = "not finite";
  if (!result.outlier) return;
  record.skipped = "outlier";
  if (is_first)
    log_info(
        "step {:>6}  skipped as an outlier: loss {:.4f} (limit {:.4f}), norm {:.3f} (limit {:.3f})",
        record.step, result.loss, limits.loss, result.gradient_norm, limits.gradient_norm);
}

// After the step, before its loss is added to the history.
std::string StepGuard::find_spike(double loss) const {
  if (!spikes_.is_spike(loss)) return "";
  return fmt::format(
      "the loss {:.4f} is {:.1f} robust deviations above {:.4f}, the median of the last {} steps "
      "(train.spikes)",
      loss, spikes_.deviations(loss), spikes_.median_loss(), spikes_.state().losses.size());
}

void StepGuard::write_to(TrainerState& state) const {
  state.loss_scale = scaler_.state();
  state.skipped = health_.skipped();
  state.outliers = health_.outliers();
  state.recent = outliers_.state();
  state.spikes = spikes_.state();
}

void StepGuard::restore(const TrainerState& state, bool with_scale) {
  if (scaler_.dynamic() && with_scale) scaler_.restore(state.loss_scale);
  health_.restore(state.skipped, state.outliers);
  outliers_.restore(state.recent);
  spikes_.restore(state.spikes);
  spike_.clear();
  divergence_.clear();
}

}  // namespace kintsugi
