#include <CLI/CLI.hpp>

#include "cli/data_commands.h"

namespace kintsugi {

void add_data_tokenize(CLI::App&) {}

}  // namespace kintsugi
