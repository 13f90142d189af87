#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "core/work_stage.h"

namespace kintsugi {

// --units of a command whose stages job arrays can do: `units` is then "now" or "later".
void add_units_option(CLI::App& command, std::string& units);
// Patterns and files expanded, as expand_inputs; "later": empty if they are not there yet.
std::vector<std::filesystem::path> inputs_for(const std::vector<std::string>& patterns,
                                              const std::string& units);
void print_work(const std::string& units, const WorkPlan& plan, bool overwrite);

}  // namespace kintsugi
