#include "cli/train/dry_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "backend/cpu/cpu_backend.h"
#include "backend/sim/sim_backend.h"
#include "cli/plan/output.h"
#include "core/error.h"
#include "core/log.h"
#include "core/units.h"
#include "plan/search/interval.h"
#include "plan/search/planner.h"
#include "train/config/changes.h"
#include "train/engine_options.h"
#include "train/memory_check.h"
#include "train/run_tasks.h"

namespace kintsugi {

bool offloads(const OffloadConfig& offload) {
  return offload.optimizer || offload.gradients || offload.activations;
}

StateOffload planned_offload(const OffloadConfig& offload) {
  return {.on = offload.optimizer, .gradients = offload.gradients};
}

PlanJob plan_job(const RunConfig& config) {
  PlanJob job{.model = config.model,
              .length = config.data.sequence_length,
              .batch = config.batch.global,
              .precision = config.train.precision,
              .reduce_in_bf16 = config.comm.reduce == DType::BF16,
              .documents = config.data.document_mask,
              .optimizer = optimizer_settings(config),
              .classifier_chunk = config.train.classifier_chunk,
              .z_loss = config.train.z_loss,
              .preference = preference_options(config),
              .weights = config.objective.class_weights.given(),
              .skip_step = config.optimizer.skip_step.deviations > 0,
              .checkpoint_every = config.train.checkpoint_every.value_or(0)};
  if (config.device == DeviceChoice::Cpu)
    job.classifier_elements = make_cpu_backend(1)->classifier_elements();
  return job;
}

namespace {

// The largest device and host memory over all stages. From the engine's own memory plan, because
// the planner's does not include offloaded activations and updates on the host.
MemoryNeed engine_memory(const RunConfig& config, const Grid& grid) {
  OperationTrace trace;
  std::unique_ptr<Backend> backend;
  if (config.device == DeviceChoice::Cpu)
    backend = make_cpu_backend(1);
  else
    backend = std::make_unique<SimBackend>(trace);
  MemoryNeed largest;
  for (int stage = 0; stage < grid.pp; ++stage) {
    const MemoryNeed need = planned_memory(*backend, config, planned_groups(grid, {.pp = stage}));
    largest.device = std::max(largest.device, need.device);
    largest.host = std::max(largest.host, need.host);
  }
  return largest;
}

double device_bytes(const MemoryNeed& need, const Machine& machine) {
  return static_cast<double>(need.device) + machine.gpu.own_gb * 1e9;
}

void refuse_too_much(double bytes, const std::string& who, const Machine& machine) {
  if (bytes > machine.gpu.memory_gb * 1e9)
    user_error("it does not fit: {} needs {}, a GPU of {} has {}", who, format_bytes(bytes),
               machine.name, format_bytes(machine.gpu.memory_gb * 1e9));
}

// The ranks of a node share its memory.
void refuse_too_much_on_host(const MemoryNeed& need, const Layout& layout, const Machine& machine) {
  const std::int64_t ranks = std::min<std::int64_t>(layout.ranks(), machine.node.gpus);
  const double bytes = static_cast<double>(ranks) * static_cast<double>(need.host);
  if (machine.node.host_memory_gb > 0 && bytes > machine.node.host_memory_gb * 1e9)
    user_error("it does not fit: {} of host memory for {} per node, a node of {} has {}",
               format_bytes(bytes), format_number(ranks, "rank"), machine.name,
               format_bytes(machine.node.host_memory_gb * 1e9));
}

// A given layout may use the margin that planned ones leave free.
std::string fitting_text(double bytes, const Machine& machine) {
  if (bytes > machine.gpu.memory_gb * 1e9) return "";
  return fmt::format("It fits: {} of {} on the fullest rank{}.\n", format_bytes(bytes),
                     format_bytes(machine.gpu.memory_gb * 1e9),
                     bytes <= machine.gpu.usable_bytes()
                         ? ""
                         : fmt::format(", but leaves less than the planner's margin of {:.3g} %",
                                       100 * machine.gpu.margin));
}

// What the time of a step has of the copies.
std::string copies_text(const OffloadConfig& offload, const Evaluation& e, const Machine& machine) {
  if (machine.node.host_link_gb_s == 0)
    return fmt::format("without the copies of offloaded data: {} has no node.host_link_gb_s",
                       machine.name);
  std::string text = fmt::format("{:.3f} s of it for copies of offloaded data", e.offload_s);
  if (offload.optimizer && offload.update != UpdateLocation::Device)
    text += ", if the device computes the update";
  return text + (offload.activations ? "; copies of activations are not counted" : "");
}

// Prints the prediction for a stage whose memory the engine counts, because the planner's does not
// have all that is offloaded. Returns the bytes of the fullest device.
double print_with_offload(const RunConfig& config, const Planner& planner, const Evaluation& e) {
  const Machine& machine = planner.machine();
  const MemoryNeed need = engine_memory(config, grid_of(e.layout, config.model));
  const double device = device_bytes(need, machine);
  refuse_too_much_on_host(need, e.layout, machine);
  fmt::print(
      "{}\nThe fullest rank needs {} of GPU memory (with {} for context and libraries) and {} of "
      "host memory.\nA step takes {:.3f} s, {}.\n{}",
      to_string(e), format_bytes(device), format_bytes(machine.gpu.own_gb * 1e9),
      format_bytes(static_cast<double>(need.host)), e.step_s,
      copies_text(config.offload, e, machine),
      explained_time(planner, e, config.total_tokens(), PrintedBy::DryRun));
  return device;
}

// The host memory of one rank for saves in the background, of the stage that needs most.
void print_snapshot(const RunConfig& config, const Layout& layout) {
  if (!config.train.save || !config.train.async_save) return;
  OperationTrace trace;
  SimBackend backend(trace);
  const Grid grid = grid_of(layout, config.model);
  std::size_t most = 0;
  for (int stage = 0; stage < grid.pp; ++stage)
    most =
        std::max(most, plan_snapshot(backend, config, planned_groups(grid, {.pp = stage})).bytes);
  fmt::print("To save in the background (train.async_save), a rank needs {} of host memory.\n",
             format_bytes(static_cast<double>(most)));
}

void print_tasks(RunConfig config) {
  if (config.train.eval_tasks.empty()) return;
  resolve_tokenizer(config);
  fmt::print("Tasks during training: {}.\n",
             RunTasks(config, *config.loaded.tokenizer).description());
}

// Prints the prediction for one stage. UserError if it does not fit.
RunFootprint dry_run_stage(const RunConfig& config, const Machine& machine, int ranks) {
  print_tasks(config);
  const PlanJob job = plan_job(config);
  Planner planner(job, machine);
  const Evaluation e = planner.evaluate(layout_on(config, ranks), planned_offload(config.offload));
  double bytes = e.memory_bytes;
  std::string who = fmt::format("stage {}", e.fullest_stage);
  if (offloads(config.offload)) {
    bytes = print_with_offload(config, planner, e);
    who = "a rank";
  } else {
    fmt::print("{}", explained(planner, e, config.total_tokens(), PrintedBy::DryRun));
  }
  fmt::print("\n{}", fitting_text(bytes, machine));
  print_snapshot(config, e.layout);
  if (config.batch.ramp.on())
    fmt::print("With batch.ramp the run has {}; the times above are for full batches.\n",
               format_number(config.total_steps(), "step"));
  refuse_too_much(bytes, who, machine);
  return footprint_of(e, job, machine, config.total_tokens());
}

// As many ranks as the largest layout needs.
std::int64_t ranks_for(const RunConfig& run) {
  std::int64_t ranks = 1;
  for (std::int64_t i = 0; i < run.stage_count(); ++i) {
    const Layout layout = run.at_stage(i).layout;
    ranks =
        std::max(ranks, std::int64_t{layout.tp} * layout.cp * layout.pp * std::max(layout.dp, 1));
  }
  return ranks;
}

}  // namespace

void check_fits(const RunConfig& stage, const Machine& machine, int ranks) {
  const Layout layout = layout_on(stage, ranks);
  if (offloads(stage.offload)) {
    const MemoryNeed need = engine_memory(stage, grid_of(layout, stage.model));
    refuse_too_much_on_host(need, layout, machine);
    return refuse_too_much(device_bytes(need, machine), "a rank", machine);
  }
  const Evaluation e = Planner(plan_job(stage), machine).evaluate(layout);
  refuse_too_much(e.memory_bytes, fmt::format("stage {}", e.fullest_stage), machine);
}

void dry_run(const RunConfig& run, const DryRunOptions& options) {
  if (options.machine.empty())
    user_error("--dry-run needs --machine: kintsugi plan machines lists the built-in ones");
  for (std::int64_t i = 0; i < run.stage_count(); ++i)
    if (run.at_stage(i).layout_auto)
      user_error("--dry-run does not take layout: auto; kintsugi plan --model finds a layout");
  const Machine machine = load_machine(options.machine);
  const std::int64_t ranks = options.gpus > 0 ? options.gpus : ranks_for(run);
  if (ranks > machine.gpus())
    user_error("{}, but {} has {}", format_number(ranks, "rank"), machine.name,
               format_number(machine.gpus(), "GPU"));
  const std::string note = run.device == DeviceChoice::Cpu ? "" : undriven_note(machine);
  if (run.stages.empty()) {
    dry_run_stage(run, machine, static_cast<int>(ranks));
    fmt::print("{}", note);
    return;
  }
  for (const std::string& jump : planned_jumps(run, 0)) log_warning("{}", jump);
  std::optional<RunFootprint> total;
  double tokens = 0;
  for (std::int64_t i = 0; i < run.stage_count(); ++i) {
    const RunConfig stage = run.at_stage(i);
    fmt::print("{}{}: {} in {}\n", i > 0 ? "\n" : "", stage.stage_title(),
               tokens_text(stage.total_tokens()), format_number(stage.total_steps(), "step"));
    try {
      const RunFootprint one = dry_run_stage(stage, machine, static_cast<int>(ranks));
      total ? * total += one : total.emplace(one);
    } catch (const UserError& error) {
      user_error("{}: {}", stage.stage_title(), error.what());
    }
    tokens += stage.total_tokens();
  }
  fmt::print("\nAll stages: {}, {}\n{}", tokens_text(tokens), footprint_text(*total, machine),
             note);
}

// ---- energy

namespace {

PlannedStep planned_step(const RunConfig& stage, const Machine& machine, int ranks) {
  if (stage.layout_auto) user_error("its layout is not known any more");
  if (stage.batch.ramp.on()) user_error("with batch.ramp steps differ");
  Planner planner(plan_job(stage), machine);
  const Evaluation e = planner.timing(layout_on(stage, ranks), planned_offload(stage.offload));
  PlannedStep step{
      .seconds = e.step_s, .gpu_j = e.gpu_joule, .within = interval_of(planner, e).within};
  if (machine.node.host_w >= 0) step.node_j = e.node_joule;
  return step;
}

// Whether the description is of a processor, such as that of a laptop.
bool is_processor(const Machine& machine) {
  return machine.gpu.name.starts_with("cpu") || machine.gpu.name.starts_with("processor");
}

void predict_steps(const RunConfig& run, const Machine& machine, int ranks,
                   EnergyContext& context) {
  if (ranks > machine.gpus())
    user_error("{} has {}, fewer than the {} of the run", machine.name,
               format_number(machine.gpus(), "GPU"), format_number(ranks, "rank"));
  for (std::int64_t i = 0; i < run.stage_count(); ++i) {
    const RunConfig stage = run.at_stage(i);
    try {
      context.planned.push_back(planned_step(stage, machine, ranks));
    } catch (const std::exception& error) {
      if (stage.stage_title().empty()) throw;
      user_error("{}: {}", stage.stage_title(), error.what());
    }
  }
}

Machine machine_of(const std::string& name) {
  try {
    return load_machine(name);
  } catch (const UserError& error) {
    user_error("energy.machine: {}", error.what());
  }
}

void replace_values(const EnergyConfig& config, FacilitySpec& facility) {
  facility.pue = config.pue.value_or(facility.pue);
  if (config.kg_co2_per_kwh || config.kg_co2_per_kwh_market)
    facility.co2_source =
        facility.co2_source.empty() || (config.kg_co2_per_kwh && config.kg_co2_per_kwh_market)
            ? "the configuration of the run"
            : facility.co2_source + "; the configuration of the run";
  facility.kg_co2_per_kwh = config.kg_co2_per_kwh.value_or(facility.kg_co2_per_kwh);
  facility.kg_co2_per_kwh_market =
      config.kg_co2_per_kwh_market.value_or(facility.kg_co2_per_kwh_market);
}

}  // namespace

EnergyContext energy_context(const RunConfig& run, int ranks, bool gpus) {
  EnergyContext context;
  if (run.energy.machine) {
    const Machine machine = machine_of(*run.energy.machine);
    context.machine = machine.name;
    context.facility = machine.facility;
    try {
      if (!gpus && !is_processor(machine)) user_error("the run uses no GPU");
      predict_steps(run, machine, ranks, context);
      context.no_plan.clear();
    } catch (const std::exception& error) {
      context.planned.clear();
      context.no_plan = error.what();
      log_warning("energy.machine {}: no prediction: {}", machine.name, error.what());
    }
  }
  replace_values(run.energy, context.facility);
  return context;
}

std::string prediction_text(const EnergyContext& context) {
  std::string text = fmt::format("energy.machine {}: predicted", context.machine);
  for (std::size_t i = 0; i < context.planned.size(); ++i) {
    const PlannedStep& step = context.planned[i];
    if (context.planned.size() > 1) text += fmt::format("{} stage {}:", i > 0 ? ";" : "", i + 1);
    text += fmt::format(" {} and {} of the GPUs in a step", joules_text(step.gpu_j),
                        power_text(step.gpu_j / step.seconds));
    if (step.node_j)
      text += fmt::format(", {} and {} of the nodes", joules_text(*step.node_j),
                          power_text(*step.node_j / step.seconds));
  }
  return text;
}

}  // namespace kintsugi
