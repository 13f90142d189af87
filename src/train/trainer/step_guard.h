#pragma once

#include <string>

#include "optim/skip_step.h"
#include "train/checkpoint/checkpoint.h"
#include "train/config/config.h"
#include "train/health.h"
#include "train/step_metrics.h"

namespace kintsugi {

// Looks at the loss and the gradient norm of each step: the loss scale, skipped steps, outliers,
// spikes and divergence. All ranks see the same values, so they decide alike.
class StepGuard {
 public:
  explicit StepGuard(const RunConfig& config);

  double loss_scale() const { return scaler_.scale(); }  // of the next step
  StepLimits limits() const { return outliers_.limits(); }
  const RunHealth& health() const { return health_; }
  const SpikeHistory& spikes() const { return spikes_; }
  SpikeHistory& spikes() { return spikes_; }

  // After a step with these limits: records whether it was skipped. All ranks call it.
  void after_step(Engine& engine, const StepResult& result, const StepLimits& limits,
                  StepRecord& record);
  // Of the last step; empty: none.
  const std::string& divergence() const { return divergence_; }  // why the run diverged
  const std::string& spike() const { return spike_; }            // describes it

  void write_to(TrainerState& state) const;
  // `with_scale`: the state has a usable loss scale.
  void restore(const TrainerState& state, bool with_scale);

 private:
  void note_skipped(const StepResult& result, const StepLimits& limits, StepRecord& record,
                    bool is_first) const;
  std::string find_spike(double loss) const;

  LossScaler scaler_;
  RunHealth health_;
  OutlierHistory outliers_;
  SpikeHistory spikes_;
  std::string spike_, divergence_;
};

}  // namespace kintsugi
