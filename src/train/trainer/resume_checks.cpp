#include "train/trainer/resume_checks.h"

#include <fmt/format.h>

#include <cstdlib>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "train/config/changes.h"
#include "train/run_history.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

// When a change of this key takes effect.
std::string when_changed(const std::string& key, const RunConfig& config, std::int64_t next_step) {
  if (key == "run.from")
    return "without effect: the run continues its own checkpoint, and its config.yaml keeps the "
           "old value";
  const std::string list = "stages[";
  const std::int64_t stage =
      key.starts_with(list) ? std::strtoll(key.c_str() + list.size(), nullptr, 10) : config.stage;
  if (stage < config.stage) return "without effect: that stage is finished";
  return stage > config.stage ? "from that stage on" : fmt::format("from step {} on", next_step);
}

void check_same_order(const RunContext& run, const RunStart& start) {
  if (run.state.data == run.data->fingerprint()) return;
  const PastOrder past{run.state.data, past_order(start.checkpoint).seed};
  const std::string other = run.data->difference_from(past);
  if (!other.empty())
    user_error(
        "the run in {} was started with another order of samples ({}): its data position cannot be "
        "carried over; restore the setting, or choose another run.dir",
        run.directory.string(), other);
}

void check_same_run(const RunContext& run, const RunStart& start) {
  if (run.state.seed != run.config.run.seed)
    user_error("the run in {} was started with seed {}, the configuration says {}",
               run.directory.string(), run.state.seed, run.config.run.seed);
  check_same_order(run, start);
  if (run.state.step <= run.schedule.last_step()) return;
  const std::string title = run.config.stage_title(),
                    keys = title.empty() ? "train." : fmt::format("stages[{}].", run.config.stage);
  user_error(
      "{}the run in {} has done {} steps, the configuration asks for {}: raise {}steps (or "
      "{}tokens), or point checkpoints/latest to an earlier checkpoint",
      title.empty() ? "" : title + " of ", run.directory.string(),
      run.state.step - run.state.stage_start, run.schedule.total_steps, keys, keys);
}

// The last entries of the history are the stages of this run that are finished, and run.state.stage
// is the one of the checkpoint.
void check_finished_stages(const RunContext& run) {
  const auto finished_before = static_cast<std::size_t>(run.state.stage);
  if (run.state.history.size() < finished_before)
    user_error("the latest checkpoint in {} is damaged: it has no history of its stages",
               run.directory.string());
  std::vector<std::int64_t> trained;
  for (std::size_t i = run.state.history.size() - finished_before; i < run.state.history.size();
       ++i)
    trained.push_back(run.state.history[i].last_step - run.state.history[i].first_step + 1);
  if (run.state.stage < run.config.stage) trained.push_back(run.state.step - run.state.stage_start);
  if (static_cast<std::int64_t>(trained.size()) != run.config.stage)
    user_error("the run in {} is in stage {}, not in stage {}: run the command again",
               run.directory.string(), run.state.stage + 1, run.config.stage + 1);
  for (std::size_t i = 0; i < trained.size(); ++i)
    if (trained[i] != run.config.stages[i].total_steps())
      user_error(
          "stage {} ({}) of the run in {} was trained for {} steps, the configuration asks for {}: "
          "restore it, because a finished stage cannot change",
          i + 1, run.config.stages[i].stage_name, run.directory.string(), trained[i],
          run.config.stages[i].total_steps());
}

}  // namespace

void check_start(RunContext& run, const std::optional<RunStart>& start, bool begins) {
  run.schedule.first_step = begins ? run.state.step : run.state.stage_start;
  if (start && !start->other_run) check_finished_stages(run);
  if (start && !begins) check_same_run(run, *start);
}

fs::path data_record(const RunContext& run) {
  const std::int64_t stage = run.config.stage;
  return run.directory / (stage == 0 ? "data.json" : fmt::format("data-stage-{}.json", stage + 1));
}

// Compares with the configuration in the checkpoint; older versions saved it only in the run
// directory.
void report_changes(RunContext& run, const RunStart& start) {
  std::string before = saved_config(start.checkpoint);
  if (before.empty() && !start.other_run && fs::exists(run.directory / "config.yaml"))
    before = read_text_file(run.directory / "config.yaml");
  if (before.empty() || run.finished()) return;
  const std::int64_t next = run.state.step + 1;
  for (const ConfigChange& change : config_changes(before, run.config)) {
    const bool origin = change.key == "run.from";
    if (change.key == "run.dir" || (origin && start.other_run)) continue;
    log_info("changed: {} {} → {} {}", change.key, change.before, change.after,
             when_changed(change.key, run.config, next));
    if (origin && change.before == "null") run.config.run.from.reset();
    if (origin && change.before != "null") run.config.run.from = change.before;
  }
  try {
    const TrainerState then = saved_state(start.checkpoint);
    RunConfig saved =
        parse_saved_config(before, "the checkpoint's config.yaml").at_stage(then.stage);
    saved.past_batches = then.batches;
    Schedule previous = schedule_of(saved);
    previous.first_step = then.stage_start;
    if (run.config.train.ema.on() && saved.train.ema.on() && !fs::exists(start.checkpoint / "ema"))
      log_warning("{} is missing: the average of the weights starts again from those of step {}",
                  (start.checkpoint / "ema").string(), run.state.step);
    const std::string jump = schedule_jump(previous, run.schedule, next);
    if (!jump.empty()) log_warning("{}", jump);
  } catch (const UserError&) {
    // Written by a version with other keys: the changes above are all that can be compared.
  }
}

}  // namespace kintsugi
