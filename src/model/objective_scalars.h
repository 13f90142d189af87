#pragma once

#include "core/step_scalars.h"

namespace kintsugi {

// What the losses of an objective sum besides themselves: log^2 Z of tokens with this coefficient
// of the z-loss (not if it is 0), or the rewards of preference pairs (Backend::preference_loss).
StepScalars objective_scalars(double z_loss, bool preference);

}  // namespace kintsugi
