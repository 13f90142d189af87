#include "cli/report/profile_report.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "cli/options.h"
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

}  // namespace

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

}  // namespace kintsugi
