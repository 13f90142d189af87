#include "optim/loss_scaler.h"

#include <algorithm>

namespace kintsugi {

void LossScaler::update(bool overflow) {
  if (!dynamic_) return;
  if (overflow) {
    state_.good_steps = 0;
    state_.hysteresis -= 1;
    if (state_.hysteresis <= 0) state_.scale = std::max(state_.scale * 0.5, options_.minimum);
    return;
  }
  state_.good_steps += 1;
  if (state_.good_steps < options_.growth_interval) return;
  state_.good_steps = 0;
  state_.hysteresis = options_.hysteresis;
  state_.scale *= 2.0;
}

}  // namespace kintsugi
