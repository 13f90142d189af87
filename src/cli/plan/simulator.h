#pragma once

#include <string>

namespace kintsugi {

// The path of kintsugi-simulate, beside this program or on PATH; UserError if there is none.
std::string find_simulator();
// What it prints about a step (StepReplay as JSON) on this network.
std::string simulate_step(const std::string& simulator, const std::string& step,
                          const std::string& network, bool as_json);

}  // namespace kintsugi
