#include "cli/campaign/forecast.h"

#include "cli/train/dry_run.h"
#include "core/error.h"
#include "plan/machines/machine.h"
#include "plan/search/planner.h"
#include "train/engine_options.h"

namespace kintsugi {
namespace {

RunFootprint footprint_of_stage(const RunConfig& stage, const Machine& machine, int ranks) {
  const PlanJob job = plan_job(stage);
  Planner planner(job, machine);
  const Evaluation evaluation =
      planner.evaluate(layout_on(stage, ranks), planned_offload(stage.offload));
  return footprint_of(evaluation, job, machine, stage.total_tokens());
}

}  // namespace

TaskForecast forecast_run(const RunConfig& config, const std::string& machine, std::int64_t ranks) {
  TaskForecast forecast;
  if (machine.empty()) {
    forecast.unknown = "launch.machine is not given";
    return forecast;
  }
  const Machine description = load_machine(machine);
  try {
    for (std::int64_t i = 0; i < config.stage_count(); ++i) {
      const RunConfig stage = config.at_stage(i);
      if (stage.layout_auto) user_error("layout: auto");
      const RunFootprint one = footprint_of_stage(stage, description, static_cast<int>(ranks));
      forecast.run ? * forecast.run += one : forecast.run.emplace(one);
    }
  } catch (const UserError& error) {
    forecast.run.reset();
    forecast.unknown = error.what();
  }
  return forecast;
}

}  // namespace kintsugi
