#include <CLI/CLI.hpp>

#include "cli/data_commands.h"

namespace kintsugi {

void add_data_where(CLI::App&) {}

}  // namespace kintsugi
