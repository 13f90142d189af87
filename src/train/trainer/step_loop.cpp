#include "train/trainer/step_loop.h"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "comm/exchange.h"

namespace kintsugi {

void StepLoop::sum_over_ranks(StepSums& sums) {
  const std::array<double*, 6> own = {&sums.next_targets, &sums.stops,    &sums.outliers,
                                      &sums.saved,        &sums.save_due, &sums.control};
  std::vector<double> values(sums.of_step.begin(), sums.of_step.end());
  for (const double* value : own) values.push_back(*value);
  if (run_.energy != nullptr) append_values(sums.energy, values);
  run_.sum_over_ranks(values);
  auto value = values.begin();
  for (double& one : sums.of_step) one = *value++;
  for (double* one : own) *one = *value++;
  if (run_.energy != nullptr) sums.energy = energy_totals_of(std::span(value, values.end()));
  targets_ = sums.next_targets;
  run_.stops.decide(sums.stops);
  parts_.saves.decide(sums.save_due);
  parts_.control.decide(sums.control);
}

void StepLoop::read_first_batch() {
  StepSums start{.next_targets = parts_.feed.load(run_.state.step + 1, nullptr),
                 .stops = run_.stops.ask()};
  sum_over_ranks(start);
}

void StepLoop::train_step() {
  const auto begin = std::chrono::steady_clock::now();
  const EnergySpan energy(run_.energy, RunPhase::Steps);
  const std::int64_t step = run_.state.step + 1;
  const StepLimits limits = parts_.guard.limits();
  Trace* trace = run_.profile == nullptr ? nullptr : run_.profile->active();
  const HostSpan whole(trace, trace == nullptr ? "" : fmt::format("step {}", step));
  const double targets = targets_;
  queue_step(step, limits, trace);
  parts_.feed.release();  // continue reading while the device computes
  const auto queued = std::chrono::steady_clock::now();
  StepSums sums{.next_targets = parts_.feed.load(step + 1, trace)};
  const double data_wait_s = seconds_since(queued);
  const StepResult result = finish_step(sums, loss_divisor(targets), trace);
  parts_.feed.refuse_other_data(step);
  if (sums.saved == run_.groups.ranks()) parts_.saves.finish();
  const CommunicationTimes communication = run_.communication_times();
  begin_record(result, step);
  run_.record.targets = static_cast<std::int64_t>(targets);
  run_.record.data_wait_s = data_wait_s;
  if (parts_.fp8.are_due(step)) parts_.fp8.record();
  parts_.experts.after_step(result, step);
  parts_.guard.after_step(*run_.engine, result, limits, run_.record);
  run_.unsaved = false;
  run_.state.step = step;
  run_.state.tokens = run_.record.tokens;
  run_.state.samples += run_.batches.sequences(step);
  parts_.guard.write_to(run_.state);
  run_.record.step_time_s = seconds_since(begin);
  end_record(sums, communication);
}

void StepLoop::queue_step(std::int64_t step, const StepLimits& limits, Trace* trace) {
  const HostSpan span(trace, "queue the step");
  const std::int64_t sequences = run_.batches.sequences(step) / run_.groups.grid.dp;
  run_.engine->begin_step(parts_.feed.tokens(),
                          {.step = step,
                           .lr = run_.schedule.learning_rate(step),
                           .loss_scale = parts_.guard.loss_scale(),
                           .dropout = run_.config.train.dropout,
                           .seed = run_.config.run.seed,
                           .first_sequence = run_.groups.coordinates.dp * sequences,
                           .targets = loss_divisor(targets_),
                           .limits = limits,
                           .fp8_statistics = parts_.fp8.are_due(step)});
}

// Waits for the device and sums over all ranks.
StepResult StepLoop::finish_step(StepSums& sums, double targets, Trace* trace) {
  const HostSpan span(trace, "wait for its result");
  const LocalStepResult local = run_.engine->finish_step();
  parts_.saves.after_step();
  sums.of_step = local.sums;
  sums.outliers = local.outlier ? 1 : 0;
  sums.stops = run_.stops.ask();
  sums.saved = parts_.saves.ended();
  sums.save_due = parts_.saves.asks_now();
  sums.control = parts_.control.asks();
  sums.energy = parts_.energy.own();
  sum_over_ranks(sums);
  if (sums.outliers > 0 && sums.outliers < run_.groups.ranks())
    throw SharedFailure(fmt::format(
        "only {} of {} ranks skipped step {} as an outlier, so their weights differ: run again to "
        "continue from the newest checkpoint",
        sums.outliers, run_.groups.ranks(), run_.state.step + 1));
  return {.loss = sums.of_step.front() / targets,
          .gradient_norm = local.gradient_norm,
          .outlier = sums.outliers > 0,
          .scalars = run_.engine->scalars().values(sums.of_step, targets)};
}

void StepLoop::begin_record(const StepResult& result, std::int64_t step) {
  const RunConfig& config = run_.config;
  const std::int64_t sequences = run_.batches.sequences(step);
  const std::int64_t tokens = sequences * config.data.sequence_length;
  run_.record = {.step = step,
                 .time_s = run_.startup.now_s(),
                 .tokens = run_.state.tokens + tokens,
                 .step_tokens = tokens,
                 .loss = result.loss,
                 .scalars = result.scalars,
                 .gradient_norm = result.gradient_norm,
                 .lr = run_.schedule.learning_rate(step),
                 .loss_scale = parts_.guard.loss_scale(),
                 .stage = config.stages.empty() ? "" : config.stage_name,
                 .memory_bytes = run_.engine->arena().total_bytes() + run_.backend.own_bytes()};
  if (config.batch.ramp.on()) run_.record.batch = sequences;
}

// What is known once the time of the step is.
void StepLoop::end_record(const StepSums& sums, const CommunicationTimes& communication) {
  StepRecord& record = run_.record;
  record.tokens_per_s = static_cast<double>(record.step_tokens) / record.step_time_s;
  parts_.progress.note_step();
  parts_.energy.record_step(sums.energy);
  parts_.progress.add_to_means();
  parts_.energy.apply_power_policy();
  run_.stops.wall_time().note_step(record.step_time_s);
  if (run_.groups.ranks() > 1) {
    record.comm_busy_s = communication.busy_s - run_.communication.busy_s;
    record.comm_wait_s = communication.waited_s - run_.communication.waited_s;
    record.comm_bytes = communication.bytes - run_.communication.bytes;
    run_.communication = communication;
  }
  parts_.ranks.note_step();
  if (!run_.is_first()) return;
  run_.log->events().note_step(record.step, record.step_time_s);
  run_.log->goodput().note_step({.step = record.step,
                                 .tokens = run_.state.tokens,
                                 .seconds = record.step_time_s,
                                 .exposed_s = record.comm_wait_s.value_or(0)});
}

}  // namespace kintsugi
