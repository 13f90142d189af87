#include "cli/plan/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "cli/backends.h"
#include "cli/options.h"
#include "cli/plan/output.h"
#include "cli/plan/simulator.h"
#include "cli/train/dry_run.h"
#include "core/child_output.h"
#include "core/error.h"
#include "core/file.h"
#include "core/progress.h"
#include "core/units.h"
#include "plan/costs/footprint.h"
#include "plan/search/scaling.h"
#include "plan/search/search.h"
#include "train/config/config.h"

namespace kintsugi {
namespace {

constexpr std::int64_t kPlannedSequence = 8192;
constexpr std::int64_t kUsualTokens = 4'000'000;  // per step without --batch

// About four million tokens, with a power of two of sequences per GPU so that it divides well.
std::int64_t usual_batch(std::int64_t length, std::int64_t gpus) {
  const double per_gpu = static_cast<double>(kUsualTokens) / static_cast<double>(length * gpus);
  return gpus * (std::int64_t{1} << std::lround(std::max(0.0, std::log2(per_gpu))));
}

// What the options also say about the job of a configuration.
void fill_common(const PlanSearchOptions& options, PlanJob& job) {
  job.imbalance = options.imbalance;
  const auto seconds = [](const std::string& text, double usual) {
    return text.empty() ? usual : parse_duration_s(text);
  };
  job.save_s = seconds(options.save_time, 0);
  job.restart_s = seconds(options.restart_time, kUsualRestart);
  job.repair_s = seconds(options.repair_time, kUsualRepair);
}

// The job of the options, without a batch size.
PlanJob job_of(const PlanSearchOptions& options) {
  PlanJob job{.model = resolve_model(options.model)};
  job.length = options.length > 0
                   ? options.length
                   : std::min(kPlannedSequence, std::max<std::int64_t>(job.model.max_positions, 1));
  if (job.model.positions() == PositionKind::Learned && job.length > job.model.max_positions)
    user_error("--length {}: the model has {} positions", job.length, job.model.max_positions);
  // fp8: training in bf16 with matmuls in fp8.
  if (options.precision == "fp8")
    job.model.fp8.recipe = Fp8Recipe::Rowwise;
  else
    job.precision = parse_precision(options.precision);
  if (options.optimizer == "muon") job.optimizer.kind = OptimizerKind::Muon;
  job.checkpoint_every = options.checkpoint_every;
  job.best_checkpoints = !options.checkpoints_given;
  fill_common(options, job);
  return job;
}

void refuse_expert_options(const PlanSearchOptions& options, const ModelConfig& model,
                           const std::string& name) {
  if (model.experts) return;
  if (options.imbalance != kUsualImbalance)
    user_error("--imbalance is for experts, and {} has none: remove it", name);
  if (options.limits.ep > 0) user_error("--ep is for experts, and {} has none: remove it", name);
}

SearchResult search_with_progress(Planner& planner, const SearchLimits& limits) {
  Progress progress("plan", 0, "layouts");
  return search_layouts(planner, limits, progress.callback());
}

[[noreturn]] void refuse(Planner& planner, const SearchLimits& limits, const SearchResult& result,
                         const JobOn& job_on) {
  user_error("{}", why_nothing_fits(planner, limits, result, job_on));
}

double tokens_of(const PlanSearchOptions& options) {
  return options.tokens.empty() ? 0 : static_cast<double>(count_of("--tokens", options.tokens));
}

// What the days, MWh and cost of a scaling table are.
std::string scaled_run_text(const std::vector<ScalingRow>& rows, double tokens) {
  const RunFootprint& last = *rows.back().run;
  std::string text =
      fmt::format("Days and MWh of {}: of {}, with checkpoints{}.\n", last.energy.co2_of,
                  tokens_text(tokens), last.failures ? " and failures of nodes" : "");
  if (last.failures)
    text += fmt::format("On {}: {}\n", format_number(rows.back().gpus, "GPU"),
                        failures_text(*last.failures));
  return text;
}

void show_scaling(const PlanSearchOptions& options, const Machine& machine, const JobOn& job_on) {
  const bool strong = options.scaling == "strong";
  const int most = options.limits.gpus;
  PlanJob job = job_on(most);
  std::vector<int> gpus = {most};
  std::string notes;
  while (gpus.front() % 2 == 0 && gpus.size() < 8) {
    const int half = gpus.front() / 2;
    if (!strong && job.batch * half % most != 0) {
      notes += fmt::format(
          "Fewer GPUs are left out: {} on {} cannot be scaled to a whole number on {}.\n",
          format_number(job.batch, "sequence"), format_number(most, "GPU"),
          format_number(half, "GPU"));
      break;
    }
    gpus.insert(gpus.begin(), half);
  }
  if (!strong) job.batch = job.batch * gpus.front() / most;
  const double tokens = tokens_of(options);
  const auto rows = [&] {
    Progress progress("plan", 0, "numbers of GPUs");
    return scaling(job, machine, options.limits, strong ? ScalingKind::Strong : ScalingKind::Weak,
                   gpus, tokens, progress.callback());
  }();
  if (rows.empty()) {
    Planner planner(job_on(most), machine);
    refuse(planner, options.limits, search_layouts(planner, options.limits), job_on);
  }
  std::string missing;
  for (const int count : gpus)
    if (std::none_of(rows.begin(), rows.end(), [&](const auto& row) { return row.gpus == count; }))
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", count);
  if (!missing.empty()) notes += fmt::format("GPUs for which no layout fits: {}.\n", missing);
  notes += efficiency_note(rows);
  if (!options.svg.empty())
    write_output_file("--svg", options.svg, options.output_rule(),
                      scaling_svg(rows, fmt::format("{} on {}, {} scaling", options.model,
                                                    machine.name, options.scaling)));
  if (options.as_json)
    return fmt::print(
        "{}", scaling_json(rows, machine,
                           {options.model, options.rank_by, most, 0, job.model.experts.has_value()},
                           tokens));
  std::vector<Evaluation> layouts;
  for (const ScalingRow& row : rows) layouts.push_back(row.evaluation);
  fmt::print("{}{}{}{}{}{}", scaling_table(rows, machine.facility.eur_per_gpu_hour),
             scaling_legend(machine), legend(layouts),
             tokens > 0 ? scaled_run_text(rows, tokens) : "", notes, undriven_note(machine));
}

// The value of --gpus, or of --nodes in GPUs.
std::int64_t gpus_of(const PlanSearchOptions& options, const Machine& machine) {
  if (options.gpus.empty()) {
    const std::int64_t nodes = count_of("--nodes", options.nodes);
    if (nodes <= machine.nodes) return nodes * machine.node.gpus;
    user_error("--nodes {}: {} has {}", nodes, machine.name, format_number(machine.nodes, "node"));
  }
  const std::int64_t gpus = count_of("--gpus", options.gpus);
  if (gpus <= machine.gpus()) return gpus;
  user_error("--gpus {}: {} has {}", gpus, machine.name, format_number(machine.gpus(), "GPU"));
}

void check_offload(const SearchLimits& limits, const Machine& machine) {
  if (!limits.offload.empty() && limits.offload != "none" && machine.node.host_link_gb_s == 0)
    user_error(
        "--offload {}: {} has no node.host_link_gb_s, the bandwidth between a GPU and host memory",
        limits.offload, machine.name);
  if (limits.offload == "gradients" && limits.schedule == "zb-h1")
    user_error("--offload gradients cannot be used with --schedule zb-h1");
}

// Without failures there are no restarts and no repairs.
void refuse_unused_times(const PlanSearchOptions& options, const Machine& machine) {
  for (const auto& [name, value] : {std::pair("--restart-time", &options.restart_time),
                                    std::pair("--repair-time", &options.repair_time)})
    if (!value->empty() && !options.node_mtbf.empty())
      user_error("{} has no effect with --node-mtbf none: remove one of them", name);
    else if (!value->empty())
      user_error("{} has no effect without --node-mtbf: {} has no node.mtbf_h", name, machine.name);
}

void fill_failures(const PlanSearchOptions& options, Machine& machine) {
  if (options.node_mtbf == kNoFailures) machine.node.mtbf_h = 0;
  if (options.node_mtbf.empty() || options.node_mtbf == kNoFailures) {
    if (machine.node.mtbf_h == 0) refuse_unused_times(options, machine);
    return;
  }
  if (machine.storage_gb_s == 0 && options.save_time.empty())
    user_error("--node-mtbf: {} has no storage_gb_s: give --save-time, the time of a checkpoint",
               machine.name);
  if (options.checkpoints_given && options.checkpoint_every == 0)
    user_error("--checkpoint-every 0: with --node-mtbf every failure would begin the run again");
  machine.node.mtbf_h = parse_duration_s(options.node_mtbf) / 3600;
}

// Checks all options before the search begins.
Machine checked_machine(PlanSearchOptions& options) {
  const char* const task = options.config.empty() ? "--model" : "--config";
  if (options.machine.empty())
    user_error("{} needs --machine: a name ({}…) or a YAML file", task, "frontier, dgx-h100, ");
  if (options.gpus.empty() && options.nodes.empty())
    user_error("{} needs --gpus or --nodes: how many of them", task);
  if (!options.scaling.empty() && options.scaling != "strong" && options.scaling != "weak")
    user_error("--scaling is '{}': give strong or weak", options.scaling);
  if (!options.emit.empty()) check_output_file("--emit", options.emit, options.output_rule());
  if (!options.svg.empty()) check_output_file("--svg", options.svg, options.output_rule());
  refuse_same_output("--emit", options.emit, "--svg", options.svg);
  if (!options.replay.empty()) check_output_file("--replay", options.replay, options.output_rule());
  refuse_same_output("--emit", options.emit, "--replay", options.replay);
  refuse_same_output("--svg", options.svg, "--replay", options.replay);
  Machine machine = load_machine(options.machine);
  if (options.eur_per_gpu_hour >= 0) machine.facility.eur_per_gpu_hour = options.eur_per_gpu_hour;
  const std::int64_t gpus = gpus_of(options, machine);
  check_offload(options.limits, machine);
  fill_failures(options, machine);
  SearchLimits& limits = options.limits;
  limits.gpus = static_cast<int>(gpus);
  limits.rank_by = parse_rank_by(options.rank_by);
  if (limits.rank_by == RankBy::Cost && machine.facility.eur_per_gpu_hour < 0)
    user_error("--rank-by cost: {} has no facility.eur_per_gpu_hour; give --eur-per-gpu-hour",
               machine.name);
  if (options.eur_per_gpu_hour >= 0 && limits.rank_by != RankBy::Cost && options.tokens.empty() &&
      options.scaling.empty() && options.config.empty())
    user_error("--eur-per-gpu-hour has no effect without --tokens, --scaling or --rank-by cost");
  if (!limits.schedule.empty()) parse_pipeline_kind(limits.schedule);
  if (!limits.recompute.empty()) parse_recompute(limits.recompute);
  if (!limits.context.empty()) parse_context_method(limits.context);
  return machine;
}

// The step of a layout, for --simulate and --replay; empty without them.
std::string replay_of(const PlanSearchOptions& options, Planner& planner, const Evaluation& one) {
  if (options.simulate.empty() && options.replay.empty()) return "";
  if (one.offload.on || one.offload.gradients)
    user_error("{}: {} offloads, and copies to host memory are not simulated; give --offload none",
               options.simulate.empty() ? "--replay" : "--simulate", to_string(one));
  return to_json(planner.replay(one));
}

void write_files(const PlanSearchOptions& options, const Planner& planner, const Evaluation& one,
                 double tokens, const std::string& replay) {
  if (!options.svg.empty() && one.layout.pp == 1)
    user_error("--svg {}: {} has no pipeline to draw", options.svg, to_string(one.layout));
  if (!options.emit.empty()) {
    const std::string yaml =
        training_yaml(planner, one, {options.model, options.data, options.tokenizer}, tokens);
    parse_run_config(yaml, options.emit);
    write_output_file("--emit", options.emit, options.output_rule(), yaml);
  }
  if (!options.svg.empty())
    write_output_file("--svg", options.svg, options.output_rule(),
                      pipeline_svg(planner.job(), one.layout));
  if (!options.replay.empty())
    write_output_file("--replay", options.replay, options.output_rule(), replay);
}

// The table of layouts, the explained one, or with --best and --explain both.
std::string search_text(const PlanSearchOptions& options, Planner& planner,
                        const SearchResult& result, double tokens) {
  const SearchLimits& limits = options.limits;
  if (options.explain == 0)
    return best_table(result, planner, tokens, limits.rank_by) + misses_table(result);
  const auto explain = static_cast<std::size_t>(options.explain) - 1;
  const std::string text = explained(planner, result.best[explain], tokens);
  if (!options.best_given) return text;
  return fmt::format("{}\nLayout {}: {}", best_table(result, planner, tokens, limits.rank_by),
                     options.explain, text);
}

}  // namespace

void add_search_limits(CLI::App& command, SearchLimits& limits) {
  const AddOption add(command);
  const CLI::Validator count = whole_number(between(1, 1 << 20));
  add("--tp", limits.tp, "Only layouts with this tensor-parallel size", count);
  add("--cp", limits.cp, "Only layouts with this context-parallel size", count);
  add("--pp", limits.pp, "Only layouts with this many pipeline stages", count);
  add("--ep", limits.ep, "Only layouts whose experts are on this many ranks", count);
  add("--micro", limits.micro, "Only layouts with this micro-batch size", count);
  add("--zero", limits.zero, "Only layouts with this ZeRO stage", whole_number(between(0, 3)));
  add("--recompute", limits.recompute,
      "Only layouts with this recomputation: none, selective or full");
  add("--schedule", limits.schedule,
      "Only layouts with this schedule: gpipe, 1f1b, interleaved or zb-h1");
  add("--context", limits.context,
      "Only layouts whose context-parallel ranks attend in this way: ring or ulysses");
}

void add_offload_option(CLI::App& command, SearchLimits& limits) {
  const AddOption add(command);
  add("--offload", limits.offload,
      "What to keep in host memory: none, optimizer, gradients (and optimizer), or all: try each "
      "(default: something only if nothing fits without)",
      CLI::IsMember({"none", "optimizer", "gradients", "all"}));
}

std::int64_t count_of(const char* option, const std::string& text) {
  try {
    const std::int64_t value = parse_count(text);
    if (value < 1) user_error("it must be 1 or more");
    return value;
  } catch (const UserError& error) {
    user_error("{} {}: {}", option, text, error.what());
  }
}

void plan_search(PlanSearchOptions options) {
  const Machine machine = checked_machine(options);
  const std::string simulator = options.simulate.empty() ? "" : find_simulator(own_program());
  const PlanJob open = job_of(options);
  refuse_expert_options(options, open.model, options.model);
  const std::int64_t batch = options.batch.empty() ? 0 : count_of("--batch", options.batch);
  if (batch > 100'000'000)
    user_error("--batch {} is too large: give at most 100M sequences", batch);
  const JobOn job_on = [&](int gpus) {
    PlanJob job = open;
    job.batch = batch > 0 ? batch : usual_batch(job.length, gpus);
    return job;
  };
  const double tokens = tokens_of(options);
  SearchLimits& limits = options.limits;
  if (!options.scaling.empty()) return show_scaling(options, machine, job_on);

  Planner planner(job_on(limits.gpus), machine);
  limits.best = std::max(limits.best, options.explain);
  const SearchResult result = search_with_progress(planner, limits);
  if (result.best.empty()) refuse(planner, limits, result, job_on);
  const auto chosen = static_cast<std::size_t>(std::max(1, options.explain)) - 1;
  if (chosen >= result.best.size())
    user_error("--explain {}: only {} fit", options.explain,
               format_number(static_cast<std::int64_t>(result.best.size()), "layout"));
  const Evaluation& one = result.best[chosen];
  // The engine's own checks.
  fit_layout(one.layout, workload_of(planner.job()), one.layout.ranks());
  const std::string replay = replay_of(options, planner, one);
  const std::string simulated =
      simulator.empty() ? "" : simulate_step(simulator, replay, options.simulate, options.as_json);
  write_files(options, planner, one, tokens, replay);
  if (options.as_json)
    fmt::print("{}", search_json(result, planner,
                                 {options.model, options.rank_by, limits.gpus, options.explain,
                                  planner.job().model.experts.has_value()},
                                 tokens, simulated));
  else
    fmt::print("{}{}{}{}", search_text(options, planner, result, tokens), undriven_note(machine),
               simulated.empty() ? "" : "\n", simulated);
}

namespace {

// What a configuration offloads stays so, unless --offload is given.
SearchLimits limits_of(const PlanSearchOptions& options, const RunConfig& stage,
                       const Machine& machine) {
  SearchLimits limits = options.limits;
  const OffloadConfig& offload = stage.offload;
  if (!limits.offload.empty() || !(offload.optimizer || offload.gradients)) return limits;
  limits.offload = offload.gradients ? "gradients" : "optimizer";
  check_offload(limits, machine);
  return limits;
}

}  // namespace

void plan_run(PlanSearchOptions options) {
  const Machine machine = checked_machine(options);
  const RunConfig run = load_run_config(options.config);
  std::optional<RunFootprint> total;
  std::string text;
  double tokens = 0;
  for (std::int64_t i = 0; i < run.stage_count(); ++i) {
    const RunConfig stage = run.at_stage(i);
    PlanJob job = plan_job(stage);
    refuse_expert_options(options, job.model, "the model of " + options.config);
    fill_common(options, job);
    Planner planner(job, machine);
    const SearchLimits limits = limits_of(options, stage, machine);
    const SearchResult result = search_with_progress(planner, limits);
    if (result.best.empty()) {
      const std::string why = why_nothing_fits(planner, limits, result, [&](int) { return job; });
      user_error("{}{}{}", stage.stage_title(), run.stages.empty() ? "" : ": ", why);
    }
    if (!run.stages.empty())
      text += fmt::format(
          "{}: {}\n", stage.stage_title(),
          fmt::format("{} of {} per step", format_number(stage.batch.global, "sequence"),
                      format_number(stage.data.sequence_length, "token")));
    text += best_table(result, planner, stage.total_tokens(), options.limits.rank_by) + "\n";
    const RunFootprint one = footprint_of(result.best.front(), job, machine, stage.total_tokens());
    total ? * total += one : total.emplace(one);
    tokens += stage.total_tokens();
  }
  if (!run.stages.empty())
    text += fmt::format("All stages, each with its first layout: {}, {}\n{}", tokens_text(tokens),
                        footprint_text(*total, machine),
                        total->failures ? failures_text(*total->failures) + "\n" : "");
  fmt::print("{}{}", text, undriven_note(machine));
}

}  // namespace kintsugi
