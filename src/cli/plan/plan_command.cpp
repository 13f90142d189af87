#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/plan/evaluate.h"
#include "cli/plan/schedule.h"
#include "cli/plan/search.h"
#include "cli/plan/tune.h"
#include "core/error.h"

namespace kintsugi {
namespace {

struct PlanOptions {
  PlanScheduleOptions schedule = {};
  PlanEvaluateOptions evaluate = {};
  PlanSearchOptions search = {};
  PlanCalculusOptions calculus = {};
  PlanTuneOptions tune = {};
  bool list_machines = false;
};

// The tasks of the command. The first task with one of its `selected_by` options on the command
// line runs. PlanOptions that are in neither list have no effect on the task and are refused.
struct Task {
  std::vector<std::string> selected_by, takes;
};
const std::vector<Task>& tasks() {
  static const std::vector<Task> all = {
      {{"--machines"}, {}},
      {{"--evaluate"}, {"--machine", "--output", "--overwrite", "--accuracy"}},
      {{"--tune"},
       {"--machine", "--gpus", "--tp", "--cp", "--pp", "--micro", "--zero", "--recompute",
        "--schedule", "--emit", "--overwrite", "--trials", "--steps", "--at-once", "--launch",
        "--trial-timeout", "--within", "--log", "--set"}},
      {{"--parameters", "--days"},
       {"--tokens", "--gpus", "--machine", "--mfu", "--flops-per-parameter"}},
      {{"--scaling"},
       {"--model", "--machine", "--gpus", "--batch", "--length", "--precision", "--optimizer",
        "--rank-by", "--eur-per-gpu-hour", "--tp", "--cp", "--pp", "--micro", "--zero",
        "--recompute", "--schedule", "--svg", "--overwrite"}},
      {{"--config"},
       {"--machine", "--gpus", "--rank-by", "--eur-per-gpu-hour", "--tp", "--cp", "--pp", "--micro",
        "--zero", "--recompute", "--schedule", "--best"}},
      {{"--model"}, {"--machine",   "--gpus",
                     "--batch",     "--length",
                     "--precision", "--optimizer",
                     "--tokens",    "--checkpoint-every",
                     "--rank-by",   "--eur-per-gpu-hour",
                     "--tp",        "--cp",
                     "--pp",        "--micro",
                     "--zero",      "--recompute",
                     "--schedule",  "--best",
                     "--explain",   "--emit",
                     "--data",      "--tokenizer",
                     "--svg",       "--json",
                     "--overwrite"}},
      {{"--stages", "--micro-batches", "--schedule"},
       {"--chunks", "--backward-ratio", "--svg", "--overwrite", "--json"}},
  };
  return all;
}

// PlanOptions of the layout search that need one of some others.
struct Requirement {
  std::string option;
  std::vector<std::string> one_of;
};
const std::vector<Requirement>& requirements() {
  static const std::vector<Requirement> all = {
      {"--svg", {"--scaling", "--explain"}},
      {"--data", {"--emit"}},
      {"--tokenizer", {"--emit"}},
      {"--checkpoint-every", {"--tokens", "--emit"}},
  };
  return all;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void check_requirements(const std::vector<std::string>& given) {
  for (const Requirement& requirement : requirements()) {
    const bool met = std::any_of(requirement.one_of.begin(), requirement.one_of.end(),
                                 [&](const std::string& name) { return contains(given, name); });
    if (contains(given, requirement.option) && !met)
      user_error("{} has no effect without {}", requirement.option,
                 fmt::join(requirement.one_of, " or "));
  }
}

void refuse_options_without_effect(const CLI::App& command) {
  std::vector<std::string> given;
  for (const CLI::Option* option : command.get_options())
    if (option->count() > 0) given.push_back(option->get_name());
  for (const Task& task : tasks()) {
    const auto selected = std::find_if(given.begin(), given.end(), [&](const std::string& name) {
      return contains(task.selected_by, name);
    });
    if (selected == given.end()) continue;
    for (const std::string& name : given)
      if (!contains(task.selected_by, name) && !contains(task.takes, name))
        user_error("{} has no effect with {}: remove one of them", name, *selected);
    if (contains(given, "--model")) check_requirements(given);
    return;
  }
}

bool given(const CLI::App& command, const char* option) {
  return command.get_option(option)->count() > 0;
}

// Runs the task that the options select.
void plan(const CLI::App& command, PlanOptions options) {
  if (options.list_machines) return list_machines();
  if (!options.evaluate.rows.empty()) {
    options.evaluate.machine = options.search.machine;
    options.evaluate.overwrite = options.search.overwrite;
    return plan_evaluate(options.evaluate);
  }
  PlanSearchOptions& search = options.search;
  search.svg = options.schedule.svg;
  options.schedule.overwrite = search.overwrite;
  search.as_json = options.schedule.as_json;
  if (given(command, "--schedule")) search.limits.schedule = options.schedule.schedule;
  search.best_given = given(command, "--best");
  if (!options.tune.config.empty()) {
    options.tune.search = search;
    return plan_tune(options.tune);
  }
  if (!options.calculus.parameters.empty() || options.calculus.days > 0) {
    options.calculus.tokens = search.tokens;
    options.calculus.gpus = search.gpus;
    options.calculus.machine = search.machine;
    return plan_calculus(options.calculus);
  }
  if (!search.config.empty()) return plan_run(search);
  search.model.empty() ? plan_schedule(options.schedule) : plan_search(search);
}

constexpr Range kMfu = {.low = 0, .high = 1, .low_open = true};

void add_limits(CLI::App& command, SearchLimits& limits) {
  const CLI::Validator count = whole_number(between(1, 1 << 20));
  command.add_option("--tp", limits.tp, "Only layouts with this tensor-parallel size")
      ->transform(count);
  command.add_option("--cp", limits.cp, "Only layouts with this context-parallel size")
      ->transform(count);
  command.add_option("--pp", limits.pp, "Only layouts with this many pipeline stages")
      ->transform(count);
  command.add_option("--micro", limits.micro, "Only layouts with this micro-batch size")
      ->transform(count);
  command.add_option("--zero", limits.zero, "Only layouts with this ZeRO stage")
      ->transform(whole_number(between(0, 3)));
  command.add_option("--recompute", limits.recompute,
                     "Only layouts with this recomputation: none, selective or full");
}

void add_search_options(CLI::App& command, PlanOptions& o) {
  PlanSearchOptions& search = o.search;
  command.add_option("--model", search.model, "Search layouts for this model: a preset or a file");
  command.add_option("--config", search.config,
                     "Search layouts for each stage of this run configuration, with its own batch, "
                     "length and tokens; adds them up");
  command.add_option("--machine", search.machine, "A machine's name (--machines) or YAML file");
  command.add_flag("--machines", o.list_machines, "List the built-in machines");
  command.add_option("--gpus", search.gpus, "Number of GPUs");
  command.add_option("--batch", search.batch, "Sequences per step (default: about 4M tokens)");
  command
      .add_option("--length", search.length,
                  "Tokens per sequence (default: the model's maximum, at most 8192)")
      ->transform(whole_number(between(1, 1 << 30)));
  command.add_option(
      "--precision", search.precision,
      "bf16 (the default), fp16, fp32, or fp8 (bf16 with train.fp8.recipe: rowwise)");
  command.add_option("--optimizer", search.optimizer, "adamw (the default) or muon")
      ->check(CLI::IsMember({"adamw", "muon"}));
  command.add_option("--tokens", search.tokens,
                     "Tokens of the whole run; adds its days, energy and CO2e");
  command
      .add_option("--checkpoint-every", search.checkpoint_every,
                  "With --tokens or --emit: steps between checkpoints (default: 250; 0: none)")
      ->transform(whole_number(between(0, 1e12)));
  command.add_option("--rank-by", search.rank_by,
                     "Order layouts by time (the default), energy or cost");
  command
      .add_option("--eur-per-gpu-hour", search.eur_per_gpu_hour,
                  "Price of a GPU-hour (default: the machine's), for --rank-by cost, --tokens or "
                  "--scaling")
      ->transform(real_number(between(0, 1e6)));
  add_limits(command, search.limits);
  command
      .add_option("--best", search.limits.best,
                  "Number of layouts to print (default: 10; with --explain: none)")
      ->transform(whole_number(between(1, 1000)));
  command
      .add_option("--explain", search.explain,
                  "Show memory, time and pipeline of the n-th best layout")
      ->transform(whole_number(between(1, 1000)));
  command.add_option("--emit", search.emit,
                     "Write a configuration for kintsugi train to this file");
  command.add_option("--data", search.data, "With --emit: path of the training data");
  command.add_option("--tokenizer", search.tokenizer, "With --emit: the tokenizer of the model");
  command.add_option("--scaling", search.scaling,
                     "strong or weak: print a scaling table for up to --gpus");
  command.add_option("--parameters", o.calculus.parameters,
                     "Compute budget: give three of --parameters, --tokens, --gpus and --days; "
                     "prints the fourth");
  command.add_option("--days", o.calculus.days, "Compute budget: duration of the run in days")
      ->transform(real_number(above(0)));
  command
      .add_option("--mfu", o.calculus.mfu, "Compute budget: model FLOP utilisation (default: 0.4)")
      ->transform(real_number(kMfu));
  command
      .add_option("--flops-per-parameter", o.calculus.flops_per_parameter,
                  "Compute budget: FLOPs per parameter and token, 6 (the default), or 8 with full "
                  "recomputation")
      ->transform(real_number(above(0)));
}

void add_tune_options(CLI::App& command, PlanTuneOptions& tune) {
  command
      .add_option("--tune", tune.config,
                  "Measure layouts of this configuration in short trials; takes --machine, --gpus, "
                  "limits (--tp …) and --emit as above")
      ->type_name("CONFIG");
  command
      .add_option("--trials", tune.trials,
                  "With --tune: number of trials, including those in --log")
      ->transform(whole_number(between(1, 100000)))
      ->capture_default_str();
  command
      .add_option("--steps", tune.steps, "With --tune: steps per trial; the first two are warm-up")
      ->transform(whole_number(between(3, 1000000)))
      ->capture_default_str();
  command.add_option("--at-once", tune.at_once, "With --tune: trials to run at the same time")
      ->transform(whole_number(between(1, 1000)))
      ->capture_default_str();
  command.add_option("--launch", tune.launch,
                     "With --tune: launch command; {ranks} and {trial} are replaced (default: "
                     "mpirun -np {ranks})");
  command.add_option("--trial-timeout", tune.timeout, "With --tune: time limit of a trial")
      ->type_name("TIME")
      ->transform(duration(above(0)))
      ->capture_default_str();
  command
      .add_option("--within", tune.within,
                  "With --tune: try layouts predicted to be at most this factor slower than the "
                  "best")
      ->transform(real_number(between(1, 1e9)))
      ->capture_default_str();
  command.add_option(
      "--log", tune.log,
      "With --tune: append all trials to this CSV file; layouts already in it are not repeated");
  command
      .add_option("--set", tune.overrides,
                  "With --tune: override a value of the configuration (repeatable)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

}  // namespace

void add_plan_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "plan", "Find the best layout of a model on a machine, or draw a pipeline schedule");
  const auto options = std::make_shared<PlanOptions>();
  add_search_options(*command, *options);
  add_tune_options(*command, options->tune);
  command->add_option(
      "--evaluate", options->evaluate.rows,
      "Predict the measured layouts of this CSV file (columns of layouts.csv), or the memory of\n"
      "its ranks (columns of memory.csv)");
  command->add_option("--output", options->evaluate.output, "With --evaluate: write to this file");
  command->add_flag("--accuracy", options->evaluate.accuracy,
                    "With --evaluate: print a table of errors instead of the rows");
  const CLI::Validator stages = whole_number(between(1, INT32_MAX));
  command->add_option("--schedule", options->schedule.schedule,
                      "Schedule to draw (default: 1f1b), or only layouts with "
                      "this schedule: gpipe, 1f1b, interleaved or zb-h1");
  command->add_option("--stages", options->schedule.stages, "Draw a schedule: pipeline stages")
      ->transform(stages);
  command
      ->add_option("--micro-batches", options->schedule.micro_batches,
                   "Draw a schedule: micro-batches per step")
      ->transform(stages);
  command
      ->add_option("--chunks", options->schedule.chunks,
                   "Draw a schedule: model chunks per rank (interleaved: 2 or more)")
      ->transform(whole_number(between(0, INT32_MAX)));
  command
      ->add_option("--backward-ratio", options->schedule.backward_ratio,
                   "Draw a schedule: backward time / forward time (default: 2)")
      ->transform(real_number());
  command->add_option("--svg", options->schedule.svg,
                      "Also write the diagram of a schedule, --scaling or --explain to this file");
  add_overwrite_option(*command, options->search.overwrite);
  command->add_flag("--json", options->schedule.as_json, "Print JSON");
  command->footer(
      "The diagram of a schedule assumes equal stages and messages that take no time.\n"
      "Examples:\n"
      "  kintsugi plan --model gpt-175b --machine frontier --gpus 1024 --batch 10240\n"
      "  kintsugi plan --model llama-8b --machine dgx-h100 --gpus 64 --tokens 1T --explain 1\n"
      "  kintsugi plan --model llama-8b --machine dgx-h100 --gpus 8 --precision fp8\n"
      "  kintsugi plan --config stages.yaml --machine dgx-h100 --gpus 64 --best 1\n"
      "  kintsugi plan --tune run.yaml --machine dgx-h100 --gpus 16 --launch 'srun -n {ranks}' \\\n"
      "                --log trials.csv --emit best.yaml\n"
      "  kintsugi plan --parameters 30B --tokens 450B --gpus 88 --machine snellius-h100\n"
      "  kintsugi plan --schedule 1f1b --stages 4 --micro-batches 8 --svg 1f1b.svg\n"
      "  kintsugi plan --schedule interleaved --stages 4 --micro-batches 8 --chunks 2");
  command->callback([options, command] {
    refuse_options_without_effect(*command);
    plan(*command, *options);
  });
}

}  // namespace kintsugi
