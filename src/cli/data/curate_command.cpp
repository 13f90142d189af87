#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "cli/commands.h"
#include "cli/data/model_classifier.h"
#include "cli/data/work_units.h"
#include "cli/engine.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/units.h"
#include "data/curation/curate_job.h"
#include "eval/run/contamination.h"
#include "eval/run/task_set.h"
#include "eval/task_data.h"
#include "train/stop_requests.h"

namespace kintsugi {
namespace {

struct CurateCommand {
  std::vector<std::string> inputs;
  std::string recipe, output, shard_size = "1GiB", save_every = "10s", compression = "zstd", job,
                              units;
  CurateOptions options;
};

std::vector<ReferenceSample> read_task_samples(const std::vector<std::string>& names) {
  std::vector<ReferenceSample> samples;
  for (const EvalTask& task : find_tasks(names, {}).tasks) {
    const TaskDocuments documents = read_documents(task, task.split, read_whole_text);
    std::ranges::move(reference_samples(task, documents), std::back_inserter(samples));
  }
  return samples;
}

std::string figures(const CurateProgress& progress, double elapsed_s) {
  const auto new_bytes = static_cast<double>(progress.read.bytes - progress.text_bytes_before);
  return fmt::format("{} documents read  {} kept  {:.1f} MB/s",
                     format_count(static_cast<double>(progress.read.documents)),
                     format_count(static_cast<double>(progress.kept.documents)),
                     new_bytes / 1e6 / std::max(elapsed_s, 1e-3));
}

void report(const CurateCommand& command, const CurateResult& result, double elapsed_s) {
  if (result.state == CurateResult::State::Stopped) {
    log_info("stopped  {}", figures(result.progress, elapsed_s));
    log_info("{} received: progress is saved; run the same command again to continue",
             StopSignals::received());
    throw CLI::RuntimeError(exit_code::kStopped);
  }
  if (result.state != CurateResult::State::WasComplete)
    log_info("done  {}", figures(result.progress, elapsed_s));
  fmt::print("{}", result.report.table().text());
  if (result.report.invalid_records > 0)
    log_warning("{} malformed records skipped, the first: {}", result.report.invalid_records,
                result.report.first_invalid);
  warn_of_skipped(result.skipped);
  const TextCount kept = result.report.kept();
  if (result.state == CurateResult::State::UnitsLeft) {
    log_info("{}: the units of this job are done, {} of {} are left to others", command.output,
             result.units_left, result.units);
    return;
  }
  log_info("{}{}: {} documents with {} of text in {}", command.output,
           result.state == CurateResult::State::WasComplete ? " is complete" : "", kept.documents,
           format_bytes(static_cast<double>(kept.bytes)),
           format_number(std::ssize(result.shards), "file"));
  if (kept.documents == 0) log_warning("no document was kept");
}

// Of sources without an input, and of inputs without a source.
void warn_of_sources(const CurateOptions& options) {
  if (options.recipe.sources.empty()) return;
  const auto of_inputs = sources_of_files(options.recipe.sources, options.inputs);
  for (const DocumentSource& source : options.recipe.sources)
    if (std::find(of_inputs.begin(), of_inputs.end(), source.name) == of_inputs.end())
      log_warning("the recipe's source {} has none of the inputs", source.name);
  const auto without = std::count(of_inputs.begin(), of_inputs.end(), "");
  if (without > 0)
    log_warning("{} of no source, the first: {}", format_number(without, "input"),
                options
                    .inputs[static_cast<std::size_t>(
                        std::find(of_inputs.begin(), of_inputs.end(), "") - of_inputs.begin())]
                    .string());
}

void run_curate(CurateCommand& command) {
  CurateOptions& options = command.options;
  options.recipe_text = read_text_file(command.recipe);
  options.recipe = read_recipe(options.recipe_text, command.recipe);
  options.sources = {.read_tasks = read_task_samples, .open_classifier = open_classifier};
  for (RecipeStep& step : options.recipe.steps)
    if (step.classify) step.classify->model = model_directory(step.classify->model).string();
  options.inputs = inputs_for(command.inputs, command.units);
  if (command.units.empty()) warn_of_sources(options);
  options.output = command.output;
  options.shard_bytes = parse_bytes(command.shard_size);
  options.save_every_s = parse_duration_s(command.save_every);
  options.compression = YamlScalar<CorpusCompression>::parse(command.compression);
  if (!command.job.empty()) options.job = parse_array_task(command.job);
  if (options.overwrite && options.job)
    user_error("--overwrite starts over with all units: leave out --job");
  if (!command.units.empty())
    return print_work(command.units, {command.output, {curation_stage(options)}},
                      options.overwrite);
  const StopSignals signals;
  std::optional<Progress> progress(std::in_place, "curate", 0, "bytes");
  bool continues = false;
  const CurateResult result = curate(options, [&](const CurateProgress& now) {
    const auto done = static_cast<std::int64_t>(now.input_bytes);
    if (!std::exchange(continues, true) && now.text_bytes_before > 0) progress->start_at(done);
    progress->set_note([&now, &progress] { return figures(now, progress->elapsed_s()); });
    progress->set(done, static_cast<std::int64_t>(now.input_bytes_total));
    progress->set_note({});  // `now` ends here
    return StopSignals::received() == nullptr;
  });
  const double elapsed_s = progress->elapsed_s();
  progress.reset();
  report(command, result, elapsed_s);
}

}  // namespace

void add_data_curate(CLI::App& data) {
  CLI::App* app = data.add_subcommand(
      "curate", "Clean, filter, mask and sample a corpus by a recipe (docs/curation.md)");
  const AddOption add(*app);
  const auto command = std::make_shared<CurateCommand>();
  CurateOptions& options = command->options;
  add("recipe", command->recipe, "YAML file with the steps", kRequired);
  add("--input", command->inputs,
      "files or 'patterns' of text, JSONL, Parquet or web archives, perhaps compressed", kRequired);
  add("--output", command->output,
      "DIR of documents-00000.jsonl.zst and so on, and curation.json, which says what each step "
      "did",
      kRequired);
  add("--compression", command->compression, "of the output",
      CLI::IsMember({"zstd", "gzip", "none"}), kShowDefault);
  add("--skip-invalid", options.skip_invalid,
      "skip and report malformed records and damaged parts of files instead of stopping");
  add("--threads", options.threads, "0: one per core", whole_number(between(0, 4096)),
      kShowDefault);
  add("--shard-size", command->shard_size,
      "text, or size of the inputs on the disk, after which a file of the output ends",
      TypeName{"SIZE"}, byte_count(at_least(1)), kShowDefault);
  add("--save-every", command->save_every,
      "save the progress this often; a crash loses at most this much work", TypeName{"TIME"},
      duration(at_least(0)), kShowDefault);
  add("--job", command->job,
      "of a job array: 3/10 does the units 3, 13, 23, …; a unit is one or more inputs of "
      "--shard-size on the disk. The last job writes curation.json",
      TypeName{"N/JOBS"});
  add_units_option(*app, command->units);
  add("--overwrite", options.overwrite, "start over: replace what a curation has written");
  app->footer(
      "Example:\n"
      "  kintsugi data curate recipe.yaml --input 'crawl/*.jsonl.zst' --output curated/fi\n"
      "As a job array of Slurm:\n"
      "  kintsugi launch --machine leonardo --partition dcgp_usr_prod --array 100 --time 1h -- "
      "data "
      "curate recipe.yaml --input 'crawl/*.jsonl.zst' --output curated/fi\n"
      "To continue a stopped or killed job, run the same command again without --overwrite.");
  app->callback([command] { run_curate(*command); });
}

}  // namespace kintsugi
