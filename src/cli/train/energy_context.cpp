#include "cli/train/energy_context.h"

#include <fmt/format.h>

#include "cli/train/dry_run.h"
#include "core/error.h"
#include "core/log.h"
#include "core/units.h"
#include "energy/carbon.h"
#include "plan/machines/machine.h"
#include "plan/search/planner.h"
#include "train/engine_options.h"

namespace kintsugi {
namespace {

PlannedStep planned_step(const RunConfig& stage, const Machine& machine, int ranks) {
  if (stage.layout_auto) user_error("its layout is not known any more");
  if (stage.batch.ramp.on()) user_error("with batch.ramp steps differ");
  const Evaluation e = Planner(plan_job(stage), machine).timing(layout_on(stage, ranks));
  PlannedStep step{.seconds = e.step_s, .gpu_j = e.gpu_joule};
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
