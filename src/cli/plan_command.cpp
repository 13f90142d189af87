#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/plan_evaluate.h"
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

void plan(const Options& options) {
  if (!options.evaluate.rows.empty()) return plan_evaluate(options.evaluate);
  if (options.stages == kUnset || options.micro_batches == kUnset)
    user_error(
        "a schedule needs {}; or give --model and --machine to look for layouts, or --evaluate",
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

}  // namespace

void add_plan_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("plan", "Draw a pipeline schedule with its bubble and activations");
  const auto options = std::make_shared<Options>();
  command->add_option("--schedule", options->schedule,
                      "gpipe, 1f1b (the default), interleaved or zb-h1");
  command->add_option("--stages", options->stages, "Pipeline ranks");
  command->add_option("--micro-batches", options->micro_batches, "Micro-batches per step");
  command->add_option("--chunks", options->chunks,
                      "Parts of the model per rank (interleaved: 2 or more)");
  command->add_option("--backward-ratio", options->backward_ratio,
                      "Time of a backward in forwards (default: 2)");
  command->add_option("--svg", options->svg, "Write the diagram to this file too");
  command->add_flag("--json", options->as_json, "Print all actions with their times as JSON");
  command->add_option("--evaluate", options->evaluate.rows,
                      "Predict the layouts of this CSV file, in the schema of layouts.csv");
  command->add_option("--machine", options->evaluate.machine,
                      "A machine's name or its description (YAML)");
  command->add_option("--output", options->evaluate.output, "Write the result to this file");
  command->add_flag("--accuracy", options->evaluate.accuracy,
                    "With --evaluate: a table of errors instead of the rows");
  command->footer(
      "Messages take no time in it, and all stages are equally long.\n"
      "Examples:\n"
      "  kintsugi plan --schedule 1f1b --stages 4 --micro-batches 8 --svg 1f1b.svg\n"
      "  kintsugi plan --schedule interleaved --stages 4 --micro-batches 8 --chunks 2");
  command->callback([options] { plan(*options); });
}

}  // namespace kintsugi
