#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/report/report_output.h"
#include "cli/train/dry_run.h"
#include "core/error.h"
#include "core/log.h"
#include "core/table.h"
#include "plan/search/planner.h"
#include "report/profile/profile_file.h"
#include "report/profile/profile_output.h"
#include "report/runs/run_view.h"
#include "train/engine_options.h"
#include "train/run_history.h"

namespace kintsugi {
namespace {

// kintsugi report --profile FILE: what a profile of `train --profile` says.
struct ProfileReportOptions {
  std::string file = {};     // empty: no profile is asked for
  std::string against = {};  // a profile to compare it with
  std::string machine = {};  // of the prediction to compare it with
  std::optional<int> rank = {};
};

// The plan of the run that was profiled, on another or the same machine.
PredictedStep predict(const ProfileFacts& facts, const std::string& source,
                      const std::string& machine_name) {
  if (facts.config.empty()) user_error("--machine: {} has no configuration of its run", source);
  const Machine machine = load_machine(machine_name);
  const RunConfig config =
      parse_saved_config(facts.config, "the configuration in " + source).at_stage(facts.stage);
  const Evaluation e = Planner(plan_job(config), machine).timing(layout_on(config, facts.ranks));
  return {machine.name,
          {.matmul_s = e.matmul_s,
           .attention_s = e.attention_s,
           .memory_s = e.memory_s,
           .optimizer_s = e.optimizer_s,
           .communication_s = e.exposed_s(),
           .bubble_s = e.bubble * e.step_s,
           .step_s = e.step_s}};
}

// The newest profile of a run directory; a file is itself.
std::string profile_file_of(const std::string& given) {
  const std::filesystem::path run = given;
  std::error_code unknown;
  if (!std::filesystem::is_directory(run, unknown)) return given;
  std::filesystem::path newest;
  std::int64_t changed_ns = INT64_MIN;
  const std::filesystem::path real = resolved(run);
  for (const std::string& name : profile_names(real)) {
    const std::optional<FileStamp> stamp = stamp_of(real / "profiles" / name);
    if (!stamp || stamp->changed_ns < changed_ns) continue;
    newest = run / "profiles" / name;
    changed_ns = stamp->changed_ns;
  }
  if (newest.empty())
    user_error(
        "{} has no profile in profiles/: give a file, or the run directory of kintsugi train "
        "--profile",
        given);
  log_note("{} is the newest profile of this run", newest.string());
  return newest.string();
}

void add_profile_options(CLI::App& command, ProfileReportOptions& options) {
  const AddOption add(command);
  CLI::Option* profile =
      add("--profile", options.file,
          "Instead of runs: analyze this profile (train --profile), or the newest of a run "
          "directory: a step by category, operation, layer and idle time",
          TypeName{"FILE"})
          ->check([](const std::string& file) { return file.empty() ? "give a file" : ""; });
  add("--against", options.against,
      "With --profile: compare with this older profile; the first line names what got slower",
      TypeName{"FILE"})
      ->needs(profile);
  add("--machine", options.machine,
      "With --profile: compare with the prediction for this machine (kintsugi plan machines)")
      ->needs(profile);
  add("--rank", options.rank, "With --profile: only this rank", whole_number(between(0, 1 << 24)))
      ->needs(profile);
}

void report_profile(const ProfileReportOptions& options, bool json) {
  const std::string file = profile_file_of(options.file);
  const ProfileAnalysis analysis = analyze(read_profile(file), file, options.rank);
  nlohmann::ordered_json result = profile_json(analysis);
  std::string text;
  if (!options.against.empty()) {
    const std::string older = profile_file_of(options.against);
    const ProfileDiff diff =
        compare_profiles(analyze(read_profile(older), older, options.rank), analysis);
    result["diff"] = diff_json(diff);
    text = diff_text(diff);
  } else {
    text = profile_text(analysis);
  }
  if (!options.machine.empty()) {
    const PredictedStep predicted = predict(analysis.facts, file, options.machine);
    result["prediction"] = prediction_json(analysis, predicted);
    text += prediction_text(analysis, predicted);
  }
  if (json)
    fmt::print("{}", json_lines(result));
  else
    fmt::print("{}", printable(text));
}

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
