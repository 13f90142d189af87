#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/plan_evaluate.h"
#include "cli/plan_search.h"
#include "cli/plan_tune.h"
#include "core/error.h"
#include "core/file.h"
#include "parallel/schedule.h"
#include "parallel/schedule_diagram.h"
#include "parallel/schedule_timing.h"

namespace kintsugi {
namespace {

constexpr int kUnset = -1;

struct Options {
  std::string schedule = "1f1b";
  int stages = kUnset;
  int micro_batches = kUnset;
  int chunks = 1;
  double backward_ratio = 2;
  std::string svg;
  bool as_json = false;
  PlanEvaluateOptions evaluate = {};
  PlanSearchOptions search = {};
  PlanCalculusOptions calculus = {};
  PlanTuneOptions tune = {};
  bool list_machines = false;
  bool schedule_given = false;
};

// The forward of a whole stage is the unit, so that schedules with and without chunks compare.
ActionTimes times_of(const Options& options) {
  // Far from these the shortest cell would stretch a picture without bound.
  if (!(options.backward_ratio >= 0.1 && options.backward_ratio <= 10))
    user_error("--backward-ratio is {}: give the time of a backward in forwards, 0.1 to 10",
               options.backward_ratio);
  const double forward = 1.0 / options.chunks;
  const double half = forward * options.backward_ratio / 2;
  return {.forward = forward, .backward_input = half, .backward_weight = half, .message = 0};
}

// Micro-batches of a whole stage: a chunk keeps its share of the activations.
double peak_in_stages(const PipelineSchedule& schedule, int live) {
  return static_cast<double>(live) / schedule.shape.chunks;
}

std::string summary(const PipelineSchedule& schedule, const PipelineTiming& timing) {
  std::string peaks;
  for (const int live : timing.peak_live)
    peaks += fmt::format("{}{}", peaks.empty() ? "" : " ", peak_in_stages(schedule, live));
  return fmt::format(
      "{}: {:.4g} forwards long, bubble {:.1f} %, peak activations per rank {} (micro-batches)\n",
      to_string(schedule.shape.kind), timing.makespan, 100 * timing.bubble, peaks);
}

std::string json_text(const Options& options, const PipelineSchedule& schedule,
                      const PipelineTiming& timing) {
  using nlohmann::ordered_json;
  ordered_json ranks = ordered_json::array();
  for (int rank = 0; rank < schedule.shape.stages; ++rank) {
    ordered_json actions = ordered_json::array();
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Action& action = schedule.ranks[rank][i];
      actions.push_back({{"kind", to_string(action.kind)},
                         {"micro_batch", action.micro_batch},
                         {"chunk", action.chunk},
                         {"start", timing.spans[rank][i].start},
                         {"end", timing.spans[rank][i].end}});
    }
    ranks.push_back({{"rank", rank},
                     {"idle", timing.idle[rank]},
                     {"peak_activations", peak_in_stages(schedule, timing.peak_live[rank])},
                     {"actions", actions}});
  }
  const ordered_json root = {{"schedule", to_string(schedule.shape.kind)},
                             {"stages", schedule.shape.stages},
                             {"micro_batches", schedule.shape.micro_batches},
                             {"chunks", schedule.shape.chunks},
                             {"backward_ratio", options.backward_ratio},
                             {"makespan", timing.makespan},
                             {"bubble", timing.bubble},
                             {"ranks", ranks}};
  return root.dump(2) + "\n";
}

void write_svg(const std::string& path, const std::string& content) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder))
    user_error("--svg {}: there is no directory {}", path, folder.string());
  if (std::filesystem::is_directory(path)) user_error("--svg {} is a directory: name a file", path);
  write_file_atomically(path, content);
}

void plan_schedule(const Options& options) {
  if (options.stages == kUnset || options.micro_batches == kUnset)
    user_error(
        "a schedule needs {}; or give --model and --machine to look for layouts, --tune or "
        "--evaluate",
        options.stages == kUnset ? "--stages" : "--micro-batches");
  const PipelineSchedule schedule =
      make_pipeline_schedule({parse_pipeline_kind(options.schedule), options.stages,
                              options.micro_batches, options.chunks});
  const PipelineTiming timing = simulate_pipeline(schedule, times_of(options));
  KINTSUGI_CHECK(timing.deadlock.empty(), "the schedule deadlocks: {}", timing.deadlock);
  if (!options.svg.empty()) write_svg(options.svg, schedule_svg(schedule, timing));
  if (options.as_json)
    fmt::print("{}", json_text(options, schedule, timing));
  else
    fmt::print("{}{}", draw_schedule(schedule, timing), summary(schedule, timing));
}

// Which of its tasks the options ask for.
void plan(Options options) {
  if (options.list_machines) return list_machines();
  if (!options.evaluate.rows.empty()) {
    options.evaluate.machine = options.search.machine;
    return plan_evaluate(options.evaluate);
  }
  PlanSearchOptions& search = options.search;
  if (!options.tune.config.empty()) {
    if (!options.svg.empty() || options.as_json)
      user_error("--tune knows no --svg and no --json: --log writes all trials");
    if (options.schedule_given) search.limits.schedule = options.schedule;
    options.tune.search = search;
    return plan_tune(options.tune);
  }
  if (!options.calculus.parameters.empty() || options.calculus.days > 0) {
    if (!search.model.empty()) user_error("--parameters and --days exclude --model: keep one");
    options.calculus.tokens = search.tokens;
    options.calculus.gpus = search.gpus;
    options.calculus.machine = search.machine;
    return plan_calculus(options.calculus);
  }
  if (search.model.empty()) return plan_schedule(options);
  search.svg = options.svg;
  search.as_json = options.as_json;
  if (options.schedule_given) search.limits.schedule = options.schedule;
  plan_search(search);
}

void add_search_options(CLI::App& command, Options& o) {
  PlanSearchOptions& search = o.search;
  command.add_option("--model", search.model, "Look for layouts of this model: a preset or a file");
  command.add_option("--machine", search.machine, "A machine's name or its description (YAML)");
  command.add_flag("--machines", o.list_machines, "List the machines that are built in");
  command.add_option("--gpus", search.gpus, "How many GPUs");
  command.add_option("--batch", search.batch, "Sequences per step (default: about 4M tokens)");
  command.add_option("--length", search.length, "Tokens per sequence (default: the model's)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  command.add_option("--precision", search.precision, "bf16 (the default), fp16 or fp32");
  command.add_option("--tokens", search.tokens, "Tokens of the whole run: days, energy, CO2e");
  command
      .add_option("--checkpoint-every", search.checkpoint_every,
                  "With --tokens: steps between checkpoints (default: 250; 0: none)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  command.add_option("--rank-by", search.rank_by, "time (the default), energy or cost");
  command.add_option("--tp", search.limits.tp, "Only this tensor parallelism");
  command.add_option("--cp", search.limits.cp, "Only this context parallelism");
  command.add_option("--pp", search.limits.pp, "Only this many stages");
  command.add_option("--micro", search.limits.micro, "Only this micro-batch");
  command.add_option("--zero", search.limits.zero, "Only this ZeRO stage")->check(CLI::Range(0, 3));
  command.add_option("--recompute", search.limits.recompute, "Only none, selective or full");
  command.add_option("--best", search.limits.best, "How many to print (default: 10)")
      ->check(CLI::Range(1, 1000));
  command.add_option("--explain", search.explain, "Show the n-th in full")
      ->check(CLI::Range(1, 1000));
  command.add_option("--emit", search.emit, "Write the configuration that train runs");
  command.add_option("--data", search.data, "With --emit: the training data");
  command.add_option("--scaling", search.scaling, "A table of strong or weak scaling");
  command.add_option("--parameters", o.calculus.parameters,
                     "Compute calculus: any of this, --tokens, --gpus, --days from the others");
  command.add_option("--days", o.calculus.days, "Days of the run")->check(CLI::PositiveNumber);
  command.add_option("--mfu", o.calculus.mfu, "Model FLOP utilisation (default: 0.4)");
  command.add_option("--flops-per-parameter", o.calculus.flops_per_parameter,
                     "Per token: 6 (the default), or 8 with full recompute");
}

void add_tune_options(CLI::App& command, PlanTuneOptions& tune) {
  command
      .add_option("--tune", tune.config,
                  "Measure layouts of this configuration with short real runs; with --machine, "
                  "--gpus, limits (--tp …) and --emit as above")
      ->type_name("CONFIG");
  command.add_option("--trials", tune.trials, "With --tune: how many runs, with those of --log")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command.add_option("--steps", tune.steps, "With --tune: steps of a run; two are for warm-up")
      ->check(CLI::Range(3, 1000000))
      ->capture_default_str();
  command.add_option("--at-once", tune.at_once, "With --tune: runs at the same time")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_option("--launch", tune.launch,
                     "With --tune: what starts a job, {ranks} and {trial} are filled in (default: "
                     "mpirun -np {ranks})");
  command.add_option("--trial-timeout", tune.timeout, "With --tune: how long a run may take")
      ->type_name("TIME")
      ->capture_default_str();
  command
      .add_option("--within", tune.within,
                  "With --tune: try what the model expects to be at most this much slower")
      ->check(CLI::Range(1.0, 1e9))
      ->capture_default_str();
  command.add_option(
      "--log", tune.log,
      "With --tune: write all trials to this CSV file; those in it are not repeated");
  command.add_option("--set", tune.overrides, "With --tune: override a value of the configuration")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

}  // namespace

void add_plan_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "plan", "Find the best layout of a model on a machine, or draw a pipeline schedule");
  const auto options = std::make_shared<Options>();
  add_search_options(*command, *options);
  add_tune_options(*command, options->tune);
  command->add_option(
      "--evaluate", options->evaluate.rows,
      "Predict the layouts of this CSV file (schema of layouts.csv), or the memory of\n"
      "its ranks (schema of memory.csv)");
  command->add_option("--output", options->evaluate.output, "With --evaluate: write to this file");
  command->add_flag("--accuracy", options->evaluate.accuracy,
                    "With --evaluate: a table of errors instead of the rows");
  CLI::Option* schedule = command->add_option("--schedule", options->schedule,
                                              "gpipe, 1f1b (the default), interleaved or zb-h1");
  command->add_option("--stages", options->stages, "Pipeline ranks");
  command->add_option("--micro-batches", options->micro_batches, "Micro-batches per step");
  command->add_option("--chunks", options->chunks,
                      "Parts of the model per rank (interleaved: 2 or more)");
  command->add_option("--backward-ratio", options->backward_ratio,
                      "Time of a backward in forwards (default: 2)");
  command->add_option("--svg", options->svg, "Write the diagram to this file too");
  command->add_flag("--json", options->as_json, "Print everything as JSON");
  command->footer(
      "In the diagram of a schedule messages take no time, and all stages are equally long.\n"
      "Examples:\n"
      "  kintsugi plan --model gpt-175b --machine frontier --gpus 1024 --batch 10240\n"
      "  kintsugi plan --model llama-8b --machine dgx-h100 --gpus 64 --tokens 1T --explain 1\n"
      "  kintsugi plan --tune run.yaml --machine dgx-h100 --gpus 16 --launch 'srun -n {ranks}' \\\n"
      "                --log trials.csv --emit best.yaml\n"
      "  kintsugi plan --parameters 30B --tokens 450B --gpus 88 --machine snellius-h100\n"
      "  kintsugi plan --schedule 1f1b --stages 4 --micro-batches 8 --svg 1f1b.svg\n"
      "  kintsugi plan --schedule interleaved --stages 4 --micro-batches 8 --chunks 2");
  command->callback([options, schedule] {
    options->schedule_given = schedule->count() > 0;
    plan(*options);
  });
}

}  // namespace kintsugi
