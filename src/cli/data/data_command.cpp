#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/data/commands.h"
#include "core/error.h"

namespace kintsugi {

void add_data_command(CLI::App& app) {
  CLI::App* data =
      app.add_subcommand("data", "Train and run tokenizers, make and inspect token stores");
  data->require_subcommand(0, 1);  // as in main: report an unknown subcommand first
  data->callback([data] {
    if (data->get_subcommands().empty())
      user_error("give a command; kintsugi data --help lists them");
  });
  data->footer("Each command has its own --help with an example.");
  add_data_train_tokenizer(*data);
  add_data_tokenize(*data);
  add_data_prepare_chat(*data);
  add_data_inspect(*data);
  add_data_verify(*data);
  add_data_merge(*data);
  add_data_where(*data);
  add_data_encode(*data);
  add_data_decode(*data);
}

}  // namespace kintsugi
