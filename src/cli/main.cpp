#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <thread>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/process.h"
#include "comm/launch_environment.h"
#include "core/build_info.h"
#include "core/error.h"
#include "core/log.h"

namespace {

// All ranks of a job find the same mistake in the same command: one reports it. A launcher ends the
// job when the first rank leaves, so the others give that one time.
int refuse_command_line(const std::string& text) {
  if (kintsugi::another_rank_reports())
    std::this_thread::sleep_for(std::chrono::seconds(2));
  else
    kintsugi::log_message(kintsugi::LogLevel::Error, text);
  return 2;
}

int run(int argc, char** argv) {
  CLI::App app(
      "Kintsugi pre-trains large language models: one native binary, from the text to the model.",
      "kintsugi");
  app.set_version_flag("--version", fmt::format("kintsugi {}", kintsugi::program_version()));
  app.require_subcommand(0,
                         1);  // none is an error too, but told after an unknown word has been named
  app.footer(
      "Each command has its own --help with an example.\n"
      "Exit codes: 0 done, 1 failure, 2 a mistake in the command, the configuration or an input "
      "file.");
  kintsugi::add_data_command(app);
  kintsugi::add_train_command(app);
  kintsugi::add_generate_command(app);
  kintsugi::add_eval_command(app);
  kintsugi::add_model_command(app);
  kintsugi::add_plan_command(app);
  kintsugi::add_calibrate_command(app);
  try {
    // Before anything else: --help would end the program without a word about it.
    if (const std::string text = kintsugi::unknown_command(app, argc, argv); !text.empty())
      return refuse_command_line(text);
    app.parse(argc, argv);
    if (app.get_subcommands().empty())
      return refuse_command_line("give a command; kintsugi --help lists them");
    return 0;
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::ParseError& error) {
    return refuse_command_line(kintsugi::explain(error, app));
  } catch (const std::exception& error) {
    return kintsugi::report(error);
  }
}

}  // namespace

// Exit codes: 0 done (also when a signal asked a run to stop and it saved), 2 the user's mistake, 1
// failure.
int main(int argc, char** argv) {
  kintsugi::prepare_process();
  return kintsugi::finish_process(run(argc, argv));
}
