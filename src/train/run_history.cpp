#include "train/run_history.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "train/checkpoint/history.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

std::string name_of_run(const fs::path& directory) {
  const fs::path path = directory.lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

// `folder` exists; `path` may not.
bool is_inside(const fs::path& path, const fs::path& folder) {
  const fs::path inner = fs::weakly_canonical(path), outer = fs::weakly_canonical(folder);
  const auto [end, rest] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return end == outer.end();
}

LineageStage from_past(const PastStage& past) {
  return {.run = past.run,
          .name = past.name,
          .first_step = past.first_step,
          .last_step = past.last_step,
          .samples = past.samples,
          .order = {.fingerprint = past.data},  // its configuration has the seed
          .batches = past.batches,
          .skipped = past.skipped,
          .text = past.config};
}

// The batches of a stage before that of `now`. Those before its last batch are `past`; `text` is
// the configuration with the last one, which the stage had until `done`.
std::vector<PastBatch> batches_before(const StageConfig& now, std::vector<PastBatch> past,
                                      const std::string& text, std::int64_t stage,
                                      BatchesDone done) {
  try {
    const BatchConfig last = parse_saved_config(text, "config.yaml").at_stage(stage).batch;
    if (done.steps > 0 && last != now.batch) past.push_back({last.global, last.ramp, done});
  } catch (const UserError&) {
    // Written by a version with other keys: the last batch is not known.
  }
  return past;
}

// The state in which the run continues, or in which it starts.
TrainerState position_of(const RunConfig& run) {
  if (const auto latest = peek_latest_checkpoint(fs::path(run.run.dir) / "checkpoints"))
    return saved_state(*latest);
  if (!run.run.from) return {};
  const fs::path start = start_of_branch(run);
  TrainerState state = next_stage(saved_state(start), start);
  state.stage = 0;
  return state;
}

}  // namespace

// Complete, so it needs neither the weights nor the run that it started from.
RunConfig parse_saved_config(const std::string& text, const std::string& source) {
  return parse_run_config(text, source, {"model.init=null", "run.from=null"});
}

RunConfig with_past_batches(RunConfig run) {
  const auto latest = peek_latest_checkpoint(fs::path(run.run.dir) / "checkpoints");
  if (!latest) return run;
  TrainerState state;
  std::string text;
  try {
    state = saved_state(*latest);
    text = saved_config(*latest);
  } catch (const UserError&) {
    return run;
  }
  const std::int64_t earlier = static_cast<std::int64_t>(state.history.size()) - state.stage;
  if (earlier < 0 || state.stage < 0 || state.stage >= run.stage_count()) return run;
  const auto stage = [&](std::int64_t number) -> StageConfig& {
    if (run.stages.empty()) return run;
    return run.stages[number];
  };
  for (std::int64_t i = 0; i < state.stage; ++i) {
    const PastStage& past = state.history[earlier + i];
    stage(i).past_batches = batches_before(stage(i), past.batches, past.config, 0,
                                           {past.last_step - past.first_step + 1, past.samples});
  }
  StageConfig& current = stage(state.stage);
  current.past_batches = batches_before(current, state.batches, text, state.stage,
                                        {state.step - state.stage_start, state.samples});
  run.past_batches = stage(run.stage).past_batches;
  return run;
}

PastOrder past_order(const fs::path& checkpoint) {
  const TrainerState state = saved_state(checkpoint);
  PastOrder order{.fingerprint = state.data};
  try {
    order.seed = parse_saved_config(saved_config(checkpoint), "config.yaml")
                     .at_stage(state.stage)
                     .data_seed();
  } catch (const UserError&) {
    // It was not saved, or by a version with other keys.
  }
  return order;
}

TrainerState next_stage(TrainerState state, const fs::path& checkpoint) {
  PastStage past{.run = name_of_run(checkpoint.parent_path().parent_path()),
                 .first_step = state.stage_start + 1,
                 .last_step = state.step,
                 .tokens = state.tokens,
                 .samples = state.samples,
                 .data = state.data,
                 .batches = std::move(state.batches),
                 .skipped = std::move(state.skipped_samples),
                 .config = saved_config(checkpoint)};
  for (const PastStage& earlier : state.history) past.tokens -= earlier.tokens;
  try {
    const RunConfig stage = parse_saved_config(past.config, "config.yaml").at_stage(state.stage);
    past.name = stage.stage_name;
    past.config = to_public_yaml(stage.alone());
  } catch (const UserError&) {
    // Written by a version with other keys: it is kept as it is.
  }
  state.history.push_back(std::move(past));
  state.stage_start = state.step;
  state.samples = 0;
  state.batches.clear();
  state.skipped_samples.clear();
  state.spikes = {};
  return state;
}

void check_other_run(const RunConfig& config) {
  if (config.run.from && is_inside(*config.run.from, config.run.dir))
    user_error(
        "run.from: {} is in the run's own directory {}: choose another run.dir, or point "
        "checkpoints/latest to it to roll the run back",
        *config.run.from, config.run.dir);
}

fs::path start_of_branch(const RunConfig& config) {
  const std::string& from = config.run.from.value();
  check_other_run(config);
  fs::path checkpoint;
  try {
    checkpoint = named_checkpoint(from);
  } catch (const UserError& error) {
    user_error("run.from: {}", error.what());
  }
  check_saved_model(checkpoint, config.model);
  return checkpoint;
}

RunConfig LineageStage::config() const {
  if (text.empty())
    user_error("{}: its configuration was not saved with the checkpoint", description());
  RunConfig config =
      parse_saved_config(text, fmt::format("the saved configuration of {}", description()));
  config.past_batches = batches;
  return config;
}

std::string LineageStage::description() const {
  return fmt::format("{}run {} (steps {} to {})",
                     name.empty() ? "" : fmt::format("stage {} of ", name), run, first_step,
                     last_step);
}

std::vector<LineageStage> lineage_of(const RunConfig& config) {
  const RunConfig run = with_past_batches(config);
  const TrainerState state = position_of(run);
  const auto latest = peek_latest_checkpoint(fs::path(run.run.dir) / "checkpoints");
  std::vector<LineageStage> stages;
  for (const PastStage& past : state.history) stages.push_back(from_past(past));
  std::int64_t step = state.stage_start;
  for (std::int64_t i = state.stage; i < run.stage_count(); ++i) {
    const RunConfig stage = run.at_stage(i).alone();
    stages.push_back(
        {.run = name_of_run(run.run.dir),
         .name = stage.stage_name,
         .first_step = step + 1,
         .last_step = step + stage.total_steps(),
         .samples = stage.total_samples(),
         .order = latest && i == state.stage ? past_order(*latest) : PastOrder{},
         .batches = stage.past_batches,
         .skipped = i == state.stage ? state.skipped_samples : std::vector<SkippedSamples>{},
         .text = to_yaml(stage)});
    step += stage.total_steps();
  }
  return stages;
}

}  // namespace kintsugi
