#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/report/profile_report.h"
#include "core/error.h"
#include "core/log.h"
#include "report/run_report.h"

namespace kintsugi {
namespace {

struct ReportOptions {
  std::vector<std::string> directories;
  ProfileReportOptions profile;
  bool json = false;
};

void report_runs(const ReportOptions& options) {
  if (options.directories.empty()) throw CLI::RequiredError("runs");
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
      "report",
      "Print the state of runs (progress, goodput, attempts and how they ended) or a profile");
  command->add_option("runs", options->directories, "Run directories (run.dir)")
      ->type_name("RUN_DIR");
  add_profile_options(*command, options->profile);
  command->add_flag("--json", options->json,
                    "Print JSON: a list with one object per run, or the object of a profile");
  command->footer(
      "Examples:\n"
      "  kintsugi report runs/demo\n"
      "  kintsugi report runs/* --json\n"
      "  kintsugi report --profile runs/demo/profiles/steps-20-25.json\n"
      "  kintsugi report --profile new.json --against old.json\n"
      "\n"
      "Goodput is the share of a run's life that was spent on new steps. docs/recovery.md\n"
      "explains the other categories.");
  command->callback([options] {
    if (options->profile.file.empty()) return report_runs(*options);
    if (!options->directories.empty())
      user_error("{} has no effect with --profile: remove one of them",
                 options->directories.front());
    report_profile(options->profile, options->json);
  });
}

}  // namespace kintsugi
