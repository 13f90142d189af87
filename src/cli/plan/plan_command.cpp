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

struct Options {
  PlanScheduleOptions schedule = {};
  PlanEvaluateOptions evaluate = {};
  PlanSearchOptions search = {};
  PlanCalculusOptions calculus = {};
  PlanTuneOptions tune = {};
  bool list_machines = false;
  bool schedule_given = false;
};

// The tasks of the command: what asks for one, in the order in which that is looked for, and what
// it takes beside. Anything else that is given would have no effect.
struct Task {
  std::vector<std::string> asked_by, takes;
};
const std::vector<Task>& tasks() {
  static const std::vector<Task> all = {
      {{"--machines"}, {}},
      {{"--evaluate"}, {"--machine", "--output", "--accuracy"}},
      {{"--tune"},
       {"--machine", "--gpus", "--tp", "--cp", "--pp", "--micro", "--zero", "--recompute",
        "--schedule", "--emit", "--trials", "--steps", "--at-once", "--launch", "--trial-timeout",
        "--within", "--log", "--set"}},
      {{"--parameters", "--days"},
       {"--tokens", "--gpus", "--machine", "--mfu", "--flops-per-parameter"}},
      {{"--scaling"},
       {"--model", "--machine", "--gpus", "--batch", "--length", "--precision", "--rank-by",
        "--eur-per-gpu-hour", "--tp", "--cp", "--pp", "--micro", "--zero", "--recompute",
        "--schedule", "--svg"}},
      {{"--model"},
       {"--machine",
        "--gpus",
        "--batch",
        "--length",
        "--precision",
        "--tokens",
        "--checkpoint-every",
        "--rank-by",
        "--eur-per-gpu-hour",
        "--tp",
        "--cp",
        "--pp",
        "--micro",
        "--zero",
        "--recompute",
        "--schedule",
        "--best",
        "--explain",
        "--emit",
        "--data",
        "--tokenizer",
        "--svg",
        "--json"}},
      {{"--stages", "--micro-batches", "--schedule"},
       {"--chunks", "--backward-ratio", "--svg", "--json"}},
  };
  return all;
}

// What looks for layouts uses only together with one of others.
struct Companion {
  std::string option;
  std::vector<std::string> one_of;
};
const std::vector<Companion>& companions() {
  static const std::vector<Companion> all = {
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

void refuse_what_is_alone(const std::vector<std::string>& given) {
  for (const Companion& companion : companions()) {
    const bool accompanied =
        std::any_of(companion.one_of.begin(), companion.one_of.end(),
                    [&](const std::string& name) { return contains(given, name); });
    if (contains(given, companion.option) && !accompanied)
      user_error("{} has no effect without {}", companion.option,
                 fmt::join(companion.one_of, " or "));
  }
}

void refuse_what_has_no_effect(const CLI::App& command) {
  std::vector<std::string> given;
  for (const CLI::Option* option : command.get_options())
    if (option->count() > 0) given.push_back(option->get_name());
  for (const Task& task : tasks()) {
    const auto asked = std::find_if(given.begin(), given.end(), [&](const std::string& name) {
      return contains(task.asked_by, name);
    });
    if (asked == given.end()) continue;
    for (const std::string& name : given)
      if (!contains(task.asked_by, name) && !contains(task.takes, name))
        user_error("{} has no effect with {}: remove one of them", name, *asked);
    if (contains(given, "--model")) refuse_what_is_alone(given);
    // JSON has the list beside what is explained.
    if (contains(given, "--best") && contains(given, "--explain") && !contains(given, "--json"))
      user_error("--best has no effect with --explain: remove one of them, or add --json");
    return;
  }
}

// Which of its tasks the options ask for.
void plan(Options options) {
  if (options.list_machines) return list_machines();
  if (!options.evaluate.rows.empty()) {
    options.evaluate.machine = options.search.machine;
    return plan_evaluate(options.evaluate);
  }
  PlanSearchOptions& search = options.search;
  search.svg = options.schedule.svg;
  search.as_json = options.schedule.as_json;
  if (options.schedule_given) search.limits.schedule = options.schedule.schedule;
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
  search.model.empty() ? plan_schedule(options.schedule) : plan_search(search);
}

constexpr Range kShare = {.low = 0, .high = 1, .low_open = true};

void add_limits(CLI::App& command, SearchLimits& limits) {
  const CLI::Validator count = whole_number(between(1, 1 << 20));
  command.add_option("--tp", limits.tp, "Only this tensor parallelism")->transform(count);
  command.add_option("--cp", limits.cp, "Only this context parallelism")->transform(count);
  command.add_option("--pp", limits.pp, "Only this many stages")->transform(count);
  command.add_option("--micro", limits.micro, "Only this micro-batch")->transform(count);
  command.add_option("--zero", limits.zero, "Only this ZeRO stage")
      ->transform(whole_number(between(0, 3)));
  command.add_option("--recompute", limits.recompute, "Only none, selective or full");
  command.add_option("--best", limits.best, "How many to print (default: 10)")
      ->transform(whole_number(between(1, 1000)));
}

void add_search_options(CLI::App& command, Options& o) {
  PlanSearchOptions& search = o.search;
  command.add_option("--model", search.model, "Look for layouts of this model: a preset or a file");
  command.add_option("--machine", search.machine, "A machine's name or its description (YAML)");
  command.add_flag("--machines", o.list_machines, "List the machines that are built in");
  command.add_option("--gpus", search.gpus, "How many GPUs");
  command.add_option("--batch", search.batch, "Sequences per step (default: about 4M tokens)");
  command.add_option("--length", search.length, "Tokens per sequence (default: the model's)")
      ->transform(whole_number(between(1, 1 << 30)));
  command.add_option("--precision", search.precision, "bf16 (the default), fp16 or fp32");
  command.add_option("--tokens", search.tokens, "Tokens of the whole run: days, energy, CO2e");
  command
      .add_option("--checkpoint-every", search.checkpoint_every,
                  "With --tokens, --emit: steps between checkpoints (default: 250; 0: none)")
      ->transform(whole_number(between(0, 1e12)));
  command.add_option("--rank-by", search.rank_by, "time (the default), energy or cost");
  command
      .add_option("--eur-per-gpu-hour", search.eur_per_gpu_hour,
                  "The price, in place of the machine's: for --rank-by cost, --tokens, --scaling")
      ->transform(real_number(between(0, 1e6)));
  add_limits(command, search.limits);
  command.add_option("--explain", search.explain, "Show the n-th in full")
      ->transform(whole_number(between(1, 1000)));
  command.add_option("--emit", search.emit, "Write the configuration that train runs");
  command.add_option("--data", search.data, "With --emit: the training data");
  command.add_option("--tokenizer", search.tokenizer, "With --emit: the model's tokenizer");
  command.add_option("--scaling", search.scaling, "A table of strong or weak scaling");
  command.add_option("--parameters", o.calculus.parameters,
                     "Compute calculus: any of this, --tokens, --gpus, --days from the others");
  command.add_option("--days", o.calculus.days, "Days of the run")
      ->transform(real_number(above(0)));
  command.add_option("--mfu", o.calculus.mfu, "Model FLOP utilisation (default: 0.4)")
      ->transform(real_number(kShare));
  command
      .add_option("--flops-per-parameter", o.calculus.flops_per_parameter,
                  "Per token: 6 (the default), or 8 with full recompute")
      ->transform(real_number(above(0)));
}

void add_tune_options(CLI::App& command, PlanTuneOptions& tune) {
  command
      .add_option("--tune", tune.config,
                  "Measure layouts of this configuration with short real runs; with --machine, "
                  "--gpus, limits (--tp …) and --emit as above")
      ->type_name("CONFIG");
  command.add_option("--trials", tune.trials, "With --tune: how many runs, with those of --log")
      ->transform(whole_number(between(1, 100000)))
      ->capture_default_str();
  command.add_option("--steps", tune.steps, "With --tune: steps of a run; two are for warm-up")
      ->transform(whole_number(between(3, 1000000)))
      ->capture_default_str();
  command.add_option("--at-once", tune.at_once, "With --tune: runs at the same time")
      ->transform(whole_number(between(1, 1000)))
      ->capture_default_str();
  command.add_option("--launch", tune.launch,
                     "With --tune: what starts a job, {ranks} and {trial} are filled in (default: "
                     "mpirun -np {ranks})");
  command.add_option("--trial-timeout", tune.timeout, "With --tune: how long a run may take")
      ->type_name("TIME")
      ->transform(duration(above(0)))
      ->capture_default_str();
  command
      .add_option("--within", tune.within,
                  "With --tune: try what the model expects to be at most this much slower")
      ->transform(real_number(between(1, 1e9)))
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
  const CLI::Validator stages = whole_number(between(1, INT32_MAX));
  CLI::Option* schedule = command->add_option("--schedule", options->schedule.schedule,
                                              "gpipe, 1f1b (the default), interleaved or zb-h1");
  command->add_option("--stages", options->schedule.stages, "Pipeline ranks")->transform(stages);
  command->add_option("--micro-batches", options->schedule.micro_batches, "Micro-batches per step")
      ->transform(stages);
  command
      ->add_option("--chunks", options->schedule.chunks,
                   "Parts of the model per rank (interleaved: 2 or more)")
      ->transform(whole_number(between(0, INT32_MAX)));
  command
      ->add_option("--backward-ratio", options->schedule.backward_ratio,
                   "Time of a backward in forwards (default: 2)")
      ->transform(real_number());
  command->add_option("--svg", options->schedule.svg,
                      "Write the diagram to this file too: of a schedule, --scaling or --explain");
  command->add_flag("--json", options->schedule.as_json, "Print everything as JSON");
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
  command->callback([options, command, schedule] {
    refuse_what_has_no_effect(*command);
    options->schedule_given = schedule->count() > 0;
    plan(*options);
  });
}

}  // namespace kintsugi
