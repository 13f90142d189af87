#pragma once

#include <string>

#include "simulate/simulation.h"

namespace kintsugi {

// The simulated step beside the priced one, by part, and each kind of call.
std::string step_text(const StepReplay& replay, const SimulatedStep& step);
std::string step_json(const StepReplay& replay, const SimulatedStep& step, NetworkKind kind);

}  // namespace kintsugi
