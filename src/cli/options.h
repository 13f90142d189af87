#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "core/yaml_reader.h"

namespace kintsugi {

// Checks of options that hold numbers, for CLI::Option::transform: numbers are written as in
// configurations (4M, 30min, 64GiB), finite and within a range. CLI11's own ranges accept NaN.
CLI::Validator whole_number(Range range);
CLI::Validator real_number(Range range = {});  // any finite number by itself
CLI::Validator seed_number();                  // 64 bits
CLI::Validator byte_count(Range range);
CLI::Validator duration(Range range);

// What is wrong with a command line before its options are looked at: an unknown command. Empty:
// nothing.
std::string unknown_command(const CLI::App& app, int argc, const char* const* argv);
// One sentence about a command line that CLI11 refused.
std::string explain(const CLI::ParseError& error, const CLI::App& app);

}  // namespace kintsugi
