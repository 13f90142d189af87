#pragma once

#include <filesystem>
#include <string>

namespace kintsugi {

// The path of kintsugi-simulate, beside a program or on PATH; UserError if there is none.
std::string find_simulator(const std::filesystem::path& program);
// What it prints about a step (StepReplay as JSON) on this network.
std::string simulate_step(const std::string& simulator, const std::string& step,
                          const std::string& network, bool as_json);

}  // namespace kintsugi
