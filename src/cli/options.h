#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "core/yaml_reader.h"

namespace kintsugi {

// Validators for CLI::Option::transform. They accept numbers as configurations do (4M, 30min,
// 64GiB), finite and within a range. CLI11's own range checks accept NaN.
CLI::Validator whole_number(Range range);
CLI::Validator real_number(Range range = {});  // default: any finite number
CLI::Validator seed_number();                  // 64 bits
CLI::Validator byte_count(Range range);
CLI::Validator duration(Range range);

// --overwrite: replace what exists under the name of an output (core/output_file.h).
CLI::Option* add_overwrite_option(CLI::App& command, bool& overwrite);

// The error message for an unknown command on the command line; empty if there is none.
std::string unknown_command(const CLI::App& app, int argc, const char* const* argv);
// The same for an option without a value, --option=, which CLI11 would give the next argument.
std::string empty_option(int argc, const char* const* argv);
// The error message for a command line that CLI11 refused, in one line.
std::string explain(const CLI::ParseError& error, const CLI::App& app);

}  // namespace kintsugi
