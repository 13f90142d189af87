#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/report/profile_report.h"
#include "cli/report/report_output.h"
#include "core/error.h"
#include "core/log.h"

namespace kintsugi {
namespace {

struct ReportArguments {
  std::vector<std::string> directories;
  ProfileReportOptions profile;
  std::string output;
  bool json = false, markdown = false, csv = false, overwrite = false;
};

ReportFormat format_of(const ReportArguments& arguments) {
  std::optional<ReportFormat> asked;
  if (arguments.json) asked = ReportFormat::Json;
  if (arguments.markdown) asked = ReportFormat::Markdown;
  if (arguments.csv) asked = ReportFormat::Csv;
  if (arguments.output.empty()) return asked.value_or(ReportFormat::Text);
  const std::optional<ReportFormat> named = format_of_file(arguments.output);
  if (!named && !asked)
    user_error(
        "--output {}: the name does not tell the format; end it in .html, .md, .csv or .json, or "
        "give --markdown, --csv or --json",
        arguments.output);
  if (named && asked && *named != *asked)
    user_error("--output {} is {}, but --{} was given: remove one of them", arguments.output,
               to_string(*named), to_string(*asked));
  return named ? *named : *asked;
}

void report_runs(const ReportArguments& arguments) {
  if (arguments.directories.empty()) throw CLI::RequiredError("runs");
  const ReportFormat format = format_of(arguments);
  write_report({arguments.directories.begin(), arguments.directories.end()}, format,
               {arguments.output, arguments.overwrite});
}

}  // namespace

void add_report_command(CLI::App& app) {
  const auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command = app.add_subcommand(
      "report",
      "Report on runs, or on a profile: as text, or as a page, Markdown or CSV in a file");
  const AddOption add(*command);
  add("runs", arguments->directories, "Run directories (run.dir), or folders of them",
      TypeName{"RUN_DIR"});
  add_profile_options(*command, arguments->profile);
  add("--output", arguments->output,
      "Write to this file; its ending chooses the format: .html (a page that needs no server), "
      ".md, .csv or .json",
      TypeName{"FILE"});
  add_overwrite_option(*command, arguments->overwrite);
  CLI::Option* json = add("--json", arguments->json,
                          "JSON: a list with one object per run, or the object of a profile");
  CLI::Option* markdown =
      add("--markdown", arguments->markdown, "Tables for an issue or an appendix, as Markdown");
  CLI::Option* csv = add("--csv", arguments->csv, "The metrics of all steps, one row per step");
  markdown->excludes(json);
  csv->excludes(json)->excludes(markdown);
  command->footer(
      "Examples:\n"
      "  kintsugi report runs/demo\n"
      "  kintsugi report runs/* --json\n"
      "  kintsugi report runs/a runs/b --output report.html\n"
      "  kintsugi report runs/demo --markdown\n"
      "  kintsugi report runs/demo --output metrics.csv\n"
      "  kintsugi report --profile runs/demo/profiles/steps-20-25.json\n"
      "  kintsugi report --profile new.json --against old.json\n"
      "\n"
      "Goodput is the share of a run's life that was spent on new steps. docs/recovery.md\n"
      "explains the other categories, docs/reports.md the files, docs/profiling.md profiles.");
  command->callback([arguments] {
    if (arguments->profile.file.empty()) return report_runs(*arguments);
    if (!arguments->directories.empty())
      user_error("{} has no effect with --profile: remove one of them",
                 arguments->directories.front());
    if (!arguments->output.empty() || arguments->markdown || arguments->csv)
      user_error("a profile is printed as text or --json: remove --output, --markdown and --csv");
    report_profile(arguments->profile, arguments->json);
  });
}

}  // namespace kintsugi
