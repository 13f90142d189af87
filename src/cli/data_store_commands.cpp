#include <CLI/CLI.hpp>

#include "cli/data_commands.h"

namespace kintsugi {

void add_data_inspect(CLI::App&) {}

void add_data_merge(CLI::App&) {}

void add_data_verify(CLI::App&) {}

}  // namespace kintsugi
