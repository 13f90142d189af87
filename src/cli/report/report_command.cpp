#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/train/dry_run.h"
#include "core/build_info.h"
#include "core/error.h"
#include "core/json_members.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/progress.h"
#include "core/table.h"
#include "core/units.h"
#include "model/metrics.h"
#include "plan/search/planner.h"
#include "report/documents/exports.h"
#include "report/documents/html.h"
#include "report/documents/markdown.h"
#include "report/documents/model_documentation.h"
#include "report/page/page.h"
#include "report/profile/profile_file.h"
#include "report/profile/profile_output.h"
#include "report/run_report.h"
#include "report/runs/run_index.h"
#include "report/runs/run_view.h"
#include "report/runs/series_view.h"
#include "train/engine_options.h"
#include "train/run_history.h"
#include "train/startup.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

enum class ReportFormat { Text, Json, Markdown, Csv, Html };

constexpr std::size_t kCheckedBytes = 4 << 20;  // of a series whose values nobody needs

// The runs in some directories and below them, read once for a report. Files that cannot be used
// are warned of. UserError if there is no run.
class ReportedRuns {
 public:
  explicit ReportedRuns(const std::vector<fs::path>& directories) : index_(directories) {
    index_.search();
    for (const SkippedFile& file : index_.skipped())
      log_warning("{}: {}", file.path.string(), file.why);
    if (index_.runs().empty())
      user_error("there is no run in {}; give run directories (run.dir) or folders of them",
                 directories.front().string());
    readers_ = index_.in_order();
  }

  const RunIndex& index() const { return index_; }
  const std::vector<const SummaryReader*>& readers() const { return readers_; }
  SeriesCache& series() { return series_; }

  // Warns of the files of which something could not be read, once the series of a run is known.
  void warn_of_damage(const SummaryReader& run, const StepSeries& series) const {
    for (const SkippedFile& file : damaged_files(run.directory(), series))
      log_warning("{}: {}", (index_.given_path(run) / file.path).string(), file.why);
  }
  void warn_of_damage() const {  // for all runs; reads their series
    for (const SummaryReader* run : readers_) {
      StepSeries series(run->directory() / "metrics.jsonl", kCheckedBytes);
      series.update();
      warn_of_damage(*run, series);
    }
  }

  // Its id; a run that was given alone has the name of its directory.
  static std::string name_of(const SummaryReader& run) {
    return run.summary().id == "." ? run.summary().name : run.summary().id;
  }

 private:
  RunIndex index_;
  std::vector<const SummaryReader*> readers_;
  SeriesCache series_;
};

struct FormatName {
  ReportFormat format;
  std::string_view name, ending;
  std::string_view beginning;  // of a report in this format
};
constexpr std::array kReportFormats = {
    FormatName{ReportFormat::Text, "text", "", ""},
    FormatName{ReportFormat::Json, "json", ".json", "[\n  {\n    \"directory\":"},
    FormatName{ReportFormat::Markdown, "markdown", ".md", "# Report of "},
    FormatName{ReportFormat::Csv, "csv", ".csv", "step,"},
    FormatName{ReportFormat::Html, "html", ".html", kHtmlBeginning},
};
const FormatName& name_of(ReportFormat format) {
  return kReportFormats[static_cast<std::size_t>(format)];
}

// Whether an earlier report is in this file: it may be replaced inside a run directory too.
bool is_report(const fs::path& output, ReportFormat format) {
  const bool several = format == ReportFormat::Csv && begins_with(output, "run,step,");
  return several || begins_with(output, name_of(format).beginning);
}

std::string text_of_runs(const std::vector<fs::path>& directories) {
  const ReportedRuns runs(directories);
  runs.warn_of_damage();
  std::string text;
  for (const SummaryReader* run : runs.readers())
    text += printable(report_text(read_run(runs.index().given_path(*run))));
  return text;
}

std::string json_of_runs(const std::vector<fs::path>& directories) {
  const ReportedRuns runs(directories);
  runs.warn_of_damage();
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const SummaryReader* run : runs.readers())
    all.push_back(report_json(read_run(runs.index().given_path(*run))));
  return json_lines(all);
}

// Tables and pages of more runs cannot be read.
void refuse_too_many(const ReportedRuns& runs) {
  if (runs.readers().size() > kMostReportRuns)
    user_error("these are {} runs: give at most {}, or use --csv, --json or kintsugi dashboard",
               runs.readers().size(), kMostReportRuns);
}

std::string markdown_of_runs(const std::vector<fs::path>& directories) {
  ReportedRuns runs(directories);
  refuse_too_many(runs);
  std::vector<std::int64_t> last_steps;
  for (const SummaryReader* run : runs.readers())
    last_steps.push_back(static_cast<std::int64_t>(run->summary().step.value_or(0)));
  MarkdownReport report{
      .table_steps = loss_table_steps(last_steps),
      .differences = json_at(compare_json(runs.readers()), "configuration"),
      .written = fmt::format("{} by kintsugi {}", iso_time(unix_time_s()), program_version())};
  for (const SummaryReader* run : runs.readers()) {
    report.runs.push_back(
        {.name = ReportedRuns::name_of(*run), .view = run_json(*run, runs.series())});
    runs.series().with(run->directory(), [&](const StepSeries& series) {
      report.runs.back().figures = step_figures(series, report.table_steps);
      runs.warn_of_damage(*run, series);
    });
  }
  return to_markdown(report);
}

// The profiles of a run as the page reads them: {"steps-20-25.json": {…}}. One that cannot be read
// is left out with a warning.
std::string profiles_of(const fs::path& directory) {
  std::string all;
  for (const std::string& name : profile_names(directory)) {
    try {
      all += fmt::format("{}{}:{}", all.empty() ? "" : ",", compact_json(name),
                         profile_page_json(directory / "profiles" / name));
    } catch (const UserError& error) {
      log_warning("the report has no profile {}: {}", printable(name), error.what());
    }
  }
  return all.empty() ? "" : "{" + all + "}";
}

std::string html_of_runs(const std::vector<fs::path>& directories) {
  ReportedRuns runs(directories);
  refuse_too_many(runs);
  HtmlReport report{.generated_s = unix_time_s(),
                    .runs = compact_json(runs_json(runs.index())),
                    .compare = compact_json(compare_json(runs.readers()))};
  for (const SummaryReader* run : runs.readers()) {
    report.run.push_back({.id = run->summary().id,
                          .view = compact_json(run_json(*run, runs.series(),
                                                        report_map_cells(runs.readers().size()))),
                          .profiles = profiles_of(run->directory())});
    runs.series().with(run->directory(), [&](const StepSeries& series) {
      report.run.back().series = report_series(series, runs.readers().size());
      runs.warn_of_damage(*run, series);
    });
  }
  return html_report(page_html(), report_data(report));
}

std::string content_of(const std::vector<fs::path>& directories, ReportFormat format) {
  switch (format) {
    case ReportFormat::Json:
      return json_of_runs(directories);
    case ReportFormat::Markdown:
      return markdown_of_runs(directories);
    case ReportFormat::Html:
      return html_of_runs(directories);
    default:
      return text_of_runs(directories);
  }
}

void write_csv_of(const std::vector<fs::path>& directories,
                  const std::function<void(std::string_view)>& write) {
  const ReportedRuns runs(directories);
  runs.warn_of_damage();
  std::vector<CsvRun> sources;
  for (const SummaryReader* run : runs.readers())
    sources.push_back({ReportedRuns::name_of(*run), run->directory() / "metrics.jsonl"});
  write_csv(sources, write);
}

// By the ending of its name; empty: unknown.
std::optional<ReportFormat> format_of_file(const fs::path& file) {
  std::string ending = file.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const FormatName& one : kReportFormats)
    if (!one.ending.empty() && ending == one.ending) return one.format;
  return {};
}

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
  const Evaluation e = Planner(plan_job(config), machine)
                           .timing(layout_on(config, facts.ranks), planned_offload(config.offload));
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
  std::string output, export_as;  // export_as: empty, or a name of kExports
  bool json = false, markdown = false, csv = false, overwrite = false;
  bool model_documentation = false;
};
const std::vector<std::string> kExports = {"csv", "mlflow", "wandb"};

ReportFormat format_of(const ReportArguments& arguments) {
  std::optional<ReportFormat> asked;
  if (arguments.json) asked = ReportFormat::Json;
  if (arguments.markdown) asked = ReportFormat::Markdown;
  if (arguments.csv || arguments.export_as == "csv") asked = ReportFormat::Csv;
  if (arguments.output.empty()) return asked.value_or(ReportFormat::Text);
  const std::optional<ReportFormat> named = format_of_file(arguments.output);
  if (!named && !asked)
    user_error(
        "--output {}: the name does not tell the format; end it in .html, .md, .csv or .json, or "
        "give --markdown, --csv or --json",
        arguments.output);
  if (named && asked && *named != *asked)
    user_error("--output {} is {}, but --{} was given: remove one of them", arguments.output,
               name_of(*named).name, name_of(*asked).name);
  return named ? *named : *asked;
}

// Of the runs in the directories and below them.
void report_runs(const ReportArguments& arguments) {
  if (arguments.directories.empty()) throw CLI::RequiredError("runs");
  const ReportFormat format = format_of(arguments);
  const std::vector<fs::path> directories(arguments.directories.begin(),
                                          arguments.directories.end());
  const auto write_to = [&](const std::function<void(std::string_view)>& write) {
    if (format == ReportFormat::Csv) return write_csv_of(directories, write);
    write(content_of(directories, format));
  };
  if (arguments.output.empty())
    return write_to([](std::string_view text) { fmt::print("{}", text); });
  OutputFile file("--output", arguments.output,
                  {.overwrite = arguments.overwrite,
                   .inputs = directories,
                   .is_own = [&](const fs::path& path) { return is_report(path, format); }});
  write_to([&](std::string_view text) { file.write(text); });
  file.publish();
  log_note("{}: {}", arguments.output,
           format_bytes(static_cast<double>(fs::file_size(arguments.output))));
}

// A directory with results is not written over or into what is read.
void check_output_directory(const std::string& output, const std::vector<fs::path>& given,
                            const ReportedRuns& runs) {
  refuse_inputs_as_output("--output", output, {.inputs = given});
  const std::string whole = fs::weakly_canonical(output).string() + "/";
  for (const SummaryReader* run : runs.readers())
    if (whole.starts_with(run->directory().string() + "/"))
      user_error("--output {} is in the run {}: choose a directory outside of it", output,
                 runs.index().given_path(*run).string());
}

// kintsugi report RUN… --export mlflow|wandb: into a directory that may have other runs.
void export_runs(const ReportArguments& arguments) {
  if (arguments.directories.empty()) throw CLI::RequiredError("runs");
  const bool mlflow = arguments.export_as == "mlflow";
  if (arguments.output.empty())
    user_error("--export {} needs --output: {}", arguments.export_as,
               mlflow ? "the directory of MLflow's file store, such as mlruns"
                      : "the directory for W&B's offline runs, such as wandb");
  if (arguments.overwrite)
    user_error("--overwrite has no effect with --export {}: remove it", arguments.export_as);
  const std::vector<fs::path> directories(arguments.directories.begin(),
                                          arguments.directories.end());
  const ReportedRuns runs(directories);
  check_output_directory(arguments.output, directories, runs);
  runs.warn_of_damage();
  std::vector<TrackedRun> tracked;  // all are checked before anything is written
  for (const SummaryReader* run : runs.readers()) tracked.push_back(tracked_run(*run));
  for (const TrackedRun& run : tracked) {
    Progress progress("export " + run.facts.name, 0, "steps");
    const fs::path written = mlflow ? export_to_mlflow(run, arguments.output, progress.callback())
                                    : export_to_wandb(run, arguments.output, progress.callback());
    log_note("{}: {}", run.facts.name, written.string());
  }
}

// The parameters and FLOPs of a run's model; the problem, if its configuration cannot be used.
ModelFacts model_facts(const fs::path& directory) {
  ModelFacts facts;
  try {
    const RunConfig run = parse_saved_config(
        read_run_file(directory / "config.yaml", kCheckedBytes).text, "config.yaml");
    const ModelConfig model = run.at_stage(run.stage_count() - 1).model;  // as it ends
    const ModelSize size = count_parameters(ParameterSet(model));
    facts.parameters = size.total;
    facts.active = size.active;
    facts.trained = size.trained;
    facts.context = model.max_positions;
    ModelConfig whole = model;
    whole.lora = {};
    facts.reading_flops_per_token = training_flops_per_token(whole, facts.context).causal() / 3;
    for (std::int64_t i = 0; i < run.stage_count(); ++i) {
      const RunConfig stage = run.at_stage(i);
      facts.stages.push_back(
          {stage.stage_name,
           training_flops_per_token(stage.model, stage.data.sequence_length).causal()});
    }
  } catch (const UserError& error) {
    facts.problem = error.what();
  }
  return facts;
}

constexpr const char* kDocumentation = "model-documentation.md";

// kintsugi report RUN… --model-documentation: printed, or with --output as a directory with the
// model card.
void document_model(const ReportArguments& arguments) {
  if (arguments.directories.empty()) throw CLI::RequiredError("runs");
  const std::vector<fs::path> directories(arguments.directories.begin(),
                                          arguments.directories.end());
  const ReportedRuns runs(directories);
  refuse_too_many(runs);
  std::vector<DocumentedRun> documented;
  for (const SummaryReader* run : runs.readers())
    documented.push_back({.name = ReportedRuns::name_of(*run),
                          .directory = run->directory(),
                          .summary = run->summary(),
                          .facts = model_facts(run->directory())});
  const nlohmann::ordered_json documentation = model_documentation(documented);
  const std::string markdown = documentation_markdown(documentation);
  if (arguments.output.empty())
    return fmt::print("{}", arguments.json ? json_lines(documentation) : markdown);
  if (arguments.json) user_error("with --output, --json has no effect: the directory has both");
  check_output_directory(arguments.output, directories, runs);
  NewDirectory output(arguments.output, arguments.overwrite,
                      {.name = "a model documentation",
                       .required = kDocumentation,
                       .is_member = [](const std::string& name) {
                         return name == kDocumentation || name == "model-documentation.json" ||
                                name == "README.md";
                       }});
  output.write(kDocumentation, markdown);
  output.write("model-documentation.json", json_lines(documentation));
  const std::string card = documented_model_card(documented.back(), documentation);
  if (card.empty())
    log_warning("{} has no checkpoint with a README.md: no model card is written",
                documented.back().name);
  else
    output.write("README.md", card);
  output.publish();
  log_note("{}: {}", arguments.output,
           format_number(static_cast<std::int64_t>(documentation["to_be_added"].size()), "answer") +
               " to be added by hand");
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
  CLI::Option* export_as = add(
      "--export", arguments->export_as,
      "The metrics of all steps, the configuration and the state for other programs: csv (a file, "
      "as --csv), mlflow (--output: a file store) or wandb (--output: a folder of offline runs)",
      CLI::IsMember(kExports));
  export_as->excludes(json)->excludes(markdown)->excludes(csv);
  CLI::Option* documentation =
      add("--model-documentation", arguments->model_documentation,
          "What the runs of one model (its stages; the last one is the model) say for the model "
          "documentation form of the EU, as Markdown or --json; --output: a directory with both "
          "and a model card");
  documentation->excludes(markdown)->excludes(csv)->excludes(export_as);
  command->footer(
      "Examples:\n"
      "  kintsugi report runs/demo\n"
      "  kintsugi report runs/* --json\n"
      "  kintsugi report runs/a runs/b --output report.html\n"
      "  kintsugi report runs/demo --markdown\n"
      "  kintsugi report runs/demo --output metrics.csv\n"
      "  kintsugi report runs/demo --export mlflow --output mlruns\n"
      "  kintsugi report runs/demo --model-documentation --output documentation\n"
      "  kintsugi report --profile runs/demo/profiles/steps-20-25.json\n"
      "  kintsugi report --profile new.json --against old.json\n"
      "\n"
      "Goodput is the share of a run's life that was spent on new steps. docs/recovery.md\n"
      "explains the other categories, docs/reports.md the files, docs/profiling.md profiles.");
  command->callback([arguments] {
    const std::string& tracker = arguments->export_as;
    const bool documentation = arguments->model_documentation;
    if (arguments->profile.file.empty() && documentation) return document_model(*arguments);
    if (arguments->profile.file.empty())
      return tracker.empty() || tracker == "csv" ? report_runs(*arguments)
                                                 : export_runs(*arguments);
    if (!arguments->directories.empty())
      user_error("{} has no effect with --profile: remove one of them",
                 arguments->directories.front());
    if (!arguments->output.empty() || arguments->markdown || arguments->csv || !tracker.empty() ||
        documentation)
      user_error(
          "a profile is printed as text or --json: remove --output, --markdown, --csv and "
          "--export");
    report_profile(arguments->profile, arguments->json);
  });
}

}  // namespace kintsugi
