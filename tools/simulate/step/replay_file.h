#pragma once

#include <string>

#include "plan/search/step_replay.h"

namespace kintsugi {

// Parses what to_json(StepReplay) writes; docs/planning.md describes it. UserError if it is not one
// that can be simulated: everything has a limit.
StepReplay parse_replay(const std::string& text, const std::string& source);

}  // namespace kintsugi
