#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/reference.h"

namespace kintsugi {

void add_completion_command(CLI::App& app) {
  auto kind = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("completion", "Print the completion script of a shell, or the man page");
  const AddOption add(*command);
  add("kind", *kind, "What to print", CLI::IsMember({"bash", "zsh", "man"}), kRequired);
  command->footer(
      "Installing puts all three where the system looks for them. Examples:\n"
      "  source <(kintsugi completion bash)\n"
      "  kintsugi completion zsh > ~/.zfunc/_kintsugi\n"
      "  kintsugi completion man > kintsugi.1 && man ./kintsugi.1");
  command->callback([kind, &app] {
    fmt::print("{}", *kind == "bash"  ? bash_completion(app)
                     : *kind == "zsh" ? zsh_completion(app)
                                      : man_page(app));
  });
}

}  // namespace kintsugi
