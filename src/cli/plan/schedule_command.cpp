#include <fmt/format.h>

#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/output_file.h"
#include "core/table.h"
#include "parallel/schedule.h"
#include "parallel/schedule_timing.h"

namespace kintsugi {
namespace {

struct PlanScheduleOptions {
  std::string schedule = "1f1b";
  int stages = 0, micro_batches = 0, chunks = 1;
  double backward_ratio = 2;
  std::string svg = {};
  bool as_json = false, overwrite = false;
};

// The unit is the forward of a whole stage, so that schedules with and without chunks compare.
ActionTimes times_of(const PlanScheduleOptions& options) {
  // A more extreme ratio would make the diagram too wide.
  if (!(options.backward_ratio >= 0.1 && options.backward_ratio <= 10))
    user_error("--backward-ratio is {}: give backward time / forward time, 0.1 to 10",
               options.backward_ratio);
  const double forward = 1.0 / options.chunks;
  const double half = forward * options.backward_ratio / 2;
  return {.forward = forward, .backward_input = half, .backward_weight = half, .message = 0};
}

// Converts live chunk activations to micro-batches of a whole stage.
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

std::string json_text(const PlanScheduleOptions& options, const PipelineSchedule& schedule,
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
  return json_lines(root);
}

void plan_schedule(const PlanScheduleOptions& options) {
  const OutputRule rule{.overwrite = options.overwrite};
  if (!options.svg.empty()) check_output_file("--svg", options.svg, rule);
  const PipelineSchedule schedule =
      make_pipeline_schedule({parse_pipeline_kind(options.schedule), options.stages,
                              options.micro_batches, options.chunks});
  const PipelineTiming timing = simulate_pipeline(schedule, times_of(options));
  KINTSUGI_CHECK(timing.deadlock.empty(), "the schedule deadlocks: {}", timing.deadlock);
  if (!options.svg.empty())
    write_output_file("--svg", options.svg, rule, schedule_svg(schedule, timing));
  if (options.as_json)
    fmt::print("{}", json_text(options, schedule, timing));
  else
    fmt::print("{}{}", draw_schedule(schedule, timing), summary(schedule, timing));
}

}  // namespace

void add_plan_schedule(CLI::App& plan) {
  const auto o = std::make_shared<PlanScheduleOptions>();
  const CLI::Validator count = whole_number(between(1, INT32_MAX));
  CLI::App* command = plan.add_subcommand("schedule", "Draw a pipeline schedule");
  const AddOption add(*command);
  add("schedule", o->schedule, "gpipe, 1f1b (the default), interleaved or zb-h1");
  add("--stages", o->stages, "Pipeline stages", count, kRequired);
  add("--micro-batches", o->micro_batches, "Micro-batches per step", count, kRequired);
  add("--chunks", o->chunks, "Model chunks per rank (interleaved: 2 or more)",
      whole_number(between(0, INT32_MAX)));
  add("--backward-ratio", o->backward_ratio, "Backward time / forward time (default: 2)",
      real_number());
  add("--svg", o->svg, "Also write the diagram to this file");
  add_overwrite_option(*command, o->overwrite);
  add("--json", o->as_json, "Print JSON");
  command->footer(
      "The diagram assumes equal stages and messages that take no time.\n\nExamples:\n"
      "  kintsugi plan schedule 1f1b --stages 4 --micro-batches 8 --svg 1f1b.svg\n"
      "  kintsugi plan schedule interleaved --stages 4 --micro-batches 8 --chunks 2");
  command->callback([o] { plan_schedule(*o); });
}

}  // namespace kintsugi
