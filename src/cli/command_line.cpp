#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <string>
#include <thread>

#include "backend/cpu/cpu_backend.h"
#include "backend/gpu/gpu_backend.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/process.h"
#include "comm/launch_environment.h"
#include "comm/mpi/mpi_world.h"
#include "comm/nccl/nccl_world.h"
#include "core/build_info.h"
#include "core/error.h"
#include "core/log.h"

namespace kintsugi {
namespace {

std::string or_not_built(const std::string& version) {
  return version.empty() ? "not built" : version;
}

// What `kintsugi --version` prints: version, commit, compiler, backends and library versions.
std::string version_text() {
  return fmt::format(
      "kintsugi {} (commit {})\n"
      "compiler: {}\n"
      "backends: cpu ({}), gpu ({}), sim\n"
      "communication: MPI ({}), {} ({})\n"
      "libraries: {}\n"
      "left out: {}",
      program_version(), program_commit(), program_compiler(), cpu_library_versions(),
      or_not_built(gpu_library_versions()), or_not_built(mpi_library_version()),
      nccl_library_name(), or_not_built(nccl_library_version()), program_libraries(),
      program_left_out().empty() ? "nothing" : program_left_out());
}

// All ranks find the same mistake in the command line; only one reports it. A launcher ends the job
// when the first rank exits, so the other ranks wait for the report.
int refuse_command_line(const std::string& text) {
  if (another_rank_reports())
    std::this_thread::sleep_for(std::chrono::seconds(2));
  else
    log_message(LogLevel::Error, text);
  return 2;
}

}  // namespace

int run_command_line(int argc, char** argv) {
  CLI::App app("Kintsugi pre-trains large language models: one native binary, from text to model.",
               "kintsugi");
  // A function: the libraries of the GPUs are not loaded by other commands.
  app.set_version_flag("--version", version_text,
                       "Print version, commit, backends and library versions");
  app.require_subcommand(0, 1);  // no command is an error too, reported below
  app.footer(
      "Each command has its own --help with examples.\n"
      "Exit codes: 0 success, 1 failure (another attempt may succeed), 2 a mistake in the command "
      "line, the\nconfiguration or an input file, 3 the training diverged, 4 a job without "
      "progress, 75 stopped on request\nwith a saved state. A command whose exit code is an answer "
      "(model diff, doctor, accept) says so in its own help.");
  add_data_command(app);
  add_train_command(app);
  add_ctl_command(app);
  add_generate_command(app);
  add_chat_command(app);
  add_serve_command(app);
  add_eval_command(app);
  add_classify_command(app);
  add_embed_command(app);
  add_model_command(app);
  add_plan_command(app);
  add_calibrate_command(app);
  add_launch_command(app);
  add_campaign_command(app);
  add_doctor_command(app);
  add_accept_command(app);
  add_report_command(app);
  add_watch_command(app);
  add_dashboard_command(app);
  add_energy_command(app);
  add_completion_command(app);
  try {
    // First, because --help would otherwise hide an unknown command.
    if (const std::string text = unknown_command(app, argc, argv); !text.empty())
      return refuse_command_line(text);
    if (const std::string text = empty_option(argc, argv); !text.empty())
      return refuse_command_line(text);
    app.parse(argc, argv);
    if (app.get_subcommands().empty())
      return refuse_command_line("give a command; kintsugi --help lists them");
    return 0;
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::RuntimeError& result) {
    return result.get_exit_code();  // of a command whose exit code is its answer
  } catch (const CLI::ParseError& error) {
    return refuse_command_line(explain(error, app));
  } catch (const std::exception& error) {
    return report(error);
  }
}

}  // namespace kintsugi
