#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "core/log.h"
#include "report/run_report.h"

namespace kintsugi {
namespace {

struct ReportOptions {
  std::vector<std::string> directories;
  bool json = false;
};

void report_runs(const ReportOptions& options) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const std::string& directory : options.directories) {
    const RunReport run = read_run(directory);
    if (options.json)
      all.push_back(report_json(run));
    else
      fmt::print("{}", printable(report_text(run)));
  }
  if (options.json)
    fmt::print("{}\n", all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace

void add_report_command(CLI::App& app) {
  const auto options = std::make_shared<ReportOptions>();
  CLI::App* command = app.add_subcommand(
      "report", "Print the state of runs: progress, goodput, attempts and how they ended");
  command->add_option("runs", options->directories, "Run directories (run.dir)")
      ->type_name("RUN_DIR")
      ->required();
  command->add_flag("--json", options->json, "Print a JSON list with one object per run");
  command->footer(
      "Examples:\n"
      "  kintsugi report runs/demo\n"
      "  kintsugi report runs/* --json\n"
      "\n"
      "Goodput is the share of a run's life that was spent on new steps. docs/recovery.md\n"
      "explains the other categories.");
  command->callback([options] { report_runs(*options); });
}

}  // namespace kintsugi
