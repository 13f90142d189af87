#include "train/trainer/run_context.h"

#include <algorithm>

#include "core/log.h"
#include "core/units.h"
#include "train/config/changes.h"
#include "train/run_history.h"

namespace kintsugi {

RunContext::RunContext(Backend& device, RunConfig given, const Groups& ranks, Startup launched)
    : backend(device),
      groups(ranks),
      config(with_past_batches(std::move(given))),
      directory(config.run.dir),
      startup(std::move(launched)),
      data(std::make_unique<RunData>(config)),
      schedule(schedule_of(config)),
      batches(config.batches()) {
  startup.mark("load data");
  for (std::int64_t i = 0; i < config.stage; ++i)  // an opened run adds the runs before this one
    schedule.first_step += config.stages[i].total_steps();
}

void RunContext::sum_over_ranks(std::span<double> values) const {
  host().wait(host().all_reduce(
      Tensor(values.data(), DType::F64, {static_cast<std::int64_t>(values.size())})));
}

CommunicationTimes RunContext::communication_times() const {
  CommunicationTimes now;
  for (const GroupSpec& spec : group_specs()) {
    if (spec.kind == GroupKind::HostTp || spec.kind == GroupKind::Checkpoint) continue;  // saves
    const CommunicationTimes one = groups[spec.kind].times();
    now.busy_s += one.busy_s;
    now.waited_s += one.waited_s;
    now.bytes += one.bytes;
  }
  return now;
}

void RunContext::continue_from_state() {
  before = {.steps = state.step, .samples = state.samples};
  batches = config.batches_after(before);
  record.step = state.step;
  record.tokens = state.tokens;
  if (!config.model.balance.counts_last_step()) state.expert_counts.clear();
  engine->set_balance_counts(state.expert_counts);
}

ProgressCall RunContext::noting_activity(Progress& progress) const {
  return [this, shown = progress.callback()](std::int64_t done, std::int64_t all) {
    note_activity();
    shown(done, all);
  };
}

void RunContext::note_validation_time(double seconds) const {
  if (!is_first()) return;
  log->goodput().note_validation(seconds);
  note_activity();
}

void RunContext::note_activity() const {
  if (is_first()) log->events().note_activity();
}

void RunContext::watch_for_stops() {
  StopRequests::Options options{.file = directory / "stop"};
  const double limit_s = config.run.time_limit.seconds;
  if (const auto end = end_of_job(startup.launched_s(), limit_s)) {
    // From here on by the steady clock: setting the system's clock must not stop the run.
    const double now_s = StopRequests().now_s();
    options.wall_time = WallTime(now_s + *end - unix_time_s(), config.run.stop_margin.seconds);
    // Of an earlier attempt or stage, until this one has saved.
    if (const auto save_s = last_save_time(directory)) options.wall_time.note_save(*save_s);
  }
  stops = StopRequests(std::move(options));
}

void RunContext::check_time_left() {
  WallTime& wall_time = stops.wall_time();
  if (!wall_time.limited()) return;
  const double left_s = wall_time.left_s(stops.now_s()), margin_s = wall_time.margin_s();
  if (left_s > margin_s)
    log_info("wall time: {} left; the run saves and stops {} before the end",
             format_duration(left_s), format_duration(margin_s));
  else
    log_warning(
        "the wall time leaves {}, less than the {} that the last save and the exit may take: the "
        "run stops without training; give the job more time or set run.stop_margin",
        format_duration(std::max(left_s, 0.0)), format_duration(margin_s));
}

bool RunContext::interrupted() {
  note_activity();
  double asks = stops.ask();
  sum_over_ranks(std::span(&asks, 1));
  stops.decide(asks);
  return stops.decided();
}

}  // namespace kintsugi
