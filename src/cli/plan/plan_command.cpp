#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/plan/search.h"
#include "core/error.h"
#include "core/units.h"

namespace kintsugi {
namespace {

// Options that the search of a configuration or a scaling table does not use, and options that need
// one of some others: ignoring them would mislead the user.
void refuse_options_without_effect(const CLI::App& command) {
  using Rules = std::vector<std::pair<std::string, std::vector<std::string>>>;
  const Rules unused = {
      {"--scaling",
       {"--config", "--best", "--explain", "--emit", "--data", "--tokenizer", "--simulate",
        "--replay"}},
      {"--nodes", {"--gpus"}},
      {"--config",
       {"--model", "--batch", "--length", "--precision", "--optimizer", "--tokens",
        "--checkpoint-every", "--explain", "--emit", "--data", "--tokenizer", "--svg", "--json",
        "--overwrite", "--simulate", "--replay"}}};
  const Rules needed = {{"--svg", {"--scaling", "--explain"}},
                        {"--data", {"--emit"}},
                        {"--tokenizer", {"--emit"}},
                        {"--checkpoint-every", {"--tokens", "--emit"}},
                        {"--node-mtbf", {"--tokens", "--config"}},
                        {"--save-time", {"--tokens", "--config"}},
                        {"--restart-time", {"--tokens", "--config"}},
                        {"--repair-time", {"--tokens", "--config"}}};
  const auto given = [&](const std::string& name) { return command.get_option(name)->count() > 0; };
  for (const auto& [with, options] : unused)
    for (const std::string& name : options)
      if (given(with) && given(name))
        user_error("{} has no effect with {}: remove one of them", name, with);
  for (const auto& [option, one_of] : needed)
    if (given(option) && std::none_of(one_of.begin(), one_of.end(), given))
      user_error("{} has no effect without {}", option, fmt::join(one_of, " or "));
}

void add_job_options(CLI::App& command, PlanSearchOptions& search) {
  const AddOption add(command);
  add("--model", search.model, "Search layouts for this model: a preset or a file");
  add("--config", search.config,
      "Search layouts for each stage of this run configuration, with its own batch, length and "
      "tokens; adds them up");
  add("--machine", search.machine, "A machine's name (kintsugi plan machines) or YAML file");
  add("--gpus", search.gpus, "Number of GPUs");
  add("--nodes", search.nodes, "Number of nodes, instead of --gpus");
  add("--batch", search.batch, "Sequences per step (default: about 4M tokens)");
  add("--length", search.length, "Tokens per sequence (default: the model's maximum, at most 8192)",
      whole_number(between(1, 1 << 30)));
  add("--precision", search.precision,
      "bf16 (the default), fp16, fp32, or fp8 (bf16 with train.fp8.recipe: rowwise)");
  add("--optimizer", search.optimizer, "adamw (the default) or muon",
      CLI::IsMember({"adamw", "muon"}));
  add("--imbalance", search.imbalance,
      "Choices of the busiest expert relative to the mean (default: 1.5; 1: forced balance)",
      real_number(between(1, 1e4)));
  add("--tokens", search.tokens, "Tokens of the whole run; adds its days, energy and CO2e");
  add("--checkpoint-every", search.checkpoint_every,
      "With --tokens or --emit: steps between checkpoints (default: 250, or what is best if "
      "failures of nodes are counted; 0: none)",
      whole_number(between(0, 1e12)));
}

// A time between failures, or none. 250 alone would be 250 seconds, which is never meant.
CLI::Validator mean_time_or_none() {
  const CLI::Validator time = duration(above(0));
  const auto check = [time](std::string& text) -> std::string {
    if (text == kNoFailures) return {};
    const std::string given = text;
    if (std::string wrong = time(text); !wrong.empty()) return wrong;
    if (parse_duration_s(text) >= 3600) return {};
    return fmt::format("'{}' is less than an hour: for 250 days give 250d", given);
  };
  return CLI::Validator(check, "1h or more, or none");
}

void add_failure_options(CLI::App& command, PlanSearchOptions& search) {
  const AddOption add(command);
  const CLI::Validator time = duration(above(0));
  add("--node-mtbf", search.node_mtbf,
      "With --tokens or --config: mean time between failures of a node, such as 250d; adds what "
      "they cost, how often to save, and spare nodes (default: the machine's; none: not counted)",
      mean_time_or_none());
  add("--save-time", search.save_time,
      "With --tokens or --config: time that training waits for a checkpoint, and that reading one "
      "takes (default: from the machine's storage_gb_s)",
      time);
  add("--restart-time", search.restart_time,
      "With --tokens or --config: from a failure until the ranks read the checkpoint (default: "
      "2min)",
      time);
  add("--repair-time", search.repair_time,
      "With --tokens or --config: time between repairs of nodes (default: 1d)", time);
}

void add_result_options(CLI::App& command, PlanSearchOptions& search) {
  const AddOption add(command);
  add("--rank-by", search.rank_by, "Order layouts by time (the default), energy or cost");
  add("--risk", search.limits.risk,
      "Order by the upper end of the 90 % interval, which prefers layouts that wait little");
  add("--eur-per-gpu-hour", search.eur_per_gpu_hour,
      "Price of a GPU-hour (default: the machine's), for --rank-by cost, --tokens or --scaling",
      real_number(between(0, 1e6)));
  add_search_limits(command, search.limits);
  add_offload_option(command, search.limits);
  add("--best", search.limits.best,
      "Number of layouts to print (default: 10; with --explain: none)",
      whole_number(between(1, 1000)));
  add("--explain", search.explain, "Show memory, time and pipeline of the n-th best layout",
      whole_number(between(1, 1000)));
  add("--emit", search.emit, "Write a configuration for kintsugi train to this file");
  add("--data", search.data, "With --emit: path of the training data");
  add("--tokenizer", search.tokenizer, "With --emit: the tokenizer of the model");
  add("--scaling", search.scaling, "strong or weak: print a scaling table for up to --gpus");
  add("--svg", search.svg, "Also write the diagram of --scaling or --explain to this file");
  add("--simulate", search.simulate,
      "Simulate the best or explained layout on a fat-tree or a dragonfly (needs SimGrid)",
      CLI::IsMember({"fat-tree", "dragonfly"}));
  add("--replay", search.replay, "Write the step of this layout for kintsugi-simulate to a file");
  add_overwrite_option(command, search.overwrite);
  add("--json", search.as_json, "Print JSON");
}

}  // namespace

void add_plan_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "plan", "Find the best layout of a model on a machine; draw schedules, tune");
  const auto search = std::make_shared<PlanSearchOptions>();
  add_job_options(*command, *search);
  add_failure_options(*command, *search);
  add_result_options(*command, *search);
  command->footer(
      "Each command has its own --help with an example.\n\nExamples:\n"
      "  kintsugi plan --model gpt-175b --machine frontier --gpus 1024 --batch 10240\n"
      "  kintsugi plan --model llama-8b --machine dgx-h100 --gpus 64 --tokens 1T --explain 1\n"
      "  kintsugi plan --model llama-8b --machine dgx-h100 --gpus 8 --precision fp8\n"
      "  kintsugi plan --model llama-70b --machine dgx-h100 --nodes 2 --offload all\n"
      "  kintsugi plan --model llama-8b --machine jupiter --nodes 64 --tokens 1T --node-mtbf 250d "
      "--save-time 20s\n"
      "  kintsugi plan --model llama-8b --machine dgx-h100 --gpus 64 --scaling strong --tokens 1T\n"
      "  kintsugi plan --model gpt-175b --machine frontier --gpus 1024 --best 1 --simulate "
      "dragonfly\n"
      "  kintsugi plan --config stages.yaml --machine dgx-h100 --gpus 64 --best 1\n"
      "  kintsugi plan schedule 1f1b --stages 4 --micro-batches 8\n"
      "  kintsugi plan tune run.yaml --machine dgx-h100 --gpus 16 --launch 'srun -n {ranks}'");
  command->require_subcommand(0, 1);
  add_plan_schedule(*command);
  add_plan_calculate(*command);
  add_plan_tune(*command);
  add_plan_machines(*command);
  command->callback([search, command] {
    if (!command->get_subcommands().empty()) return;
    refuse_options_without_effect(*command);
    search->best_given = command->get_option("--best")->count() > 0;
    search->checkpoints_given = command->get_option("--checkpoint-every")->count() > 0;
    if (!search->config.empty()) return plan_run(*search);
    if (search->model.empty())
      user_error("give --model or --config, or a command; kintsugi plan --help lists them");
    plan_search(*search);
  });
}

}  // namespace kintsugi
