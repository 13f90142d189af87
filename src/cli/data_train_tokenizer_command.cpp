#include <CLI/CLI.hpp>

#include "cli/data_commands.h"

namespace kintsugi {

void add_data_train_tokenizer(CLI::App&) {}

}  // namespace kintsugi
