#include "train/trainer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "comm/exchange.h"
#include "comm/flight_recorder.h"
#include "comm/launch_environment.h"
#include "core/exit_code.h"
#include "core/file.h"
#include "core/log.h"
#include "core/units.h"
#include "train/checkpoint/tokenizer_files.h"
#include "train/config/changes.h"
#include "train/initial_weights.h"
#include "train/memory_check.h"
#include "train/run_history.h"

namespace kintsugi {
namespace fs = std::filesystem;

Trainer::Trainer(Backend& backend, RunConfig config)
    : Trainer(backend, std::move(config), std::make_unique<Groups>(single_rank_groups(backend))) {}

Trainer::Trainer(Backend& backend, RunConfig config, std::unique_ptr<Groups> own_groups)
    : Trainer(backend, std::move(config), *own_groups) {
  own_groups_ = std::move(own_groups);
}

Trainer::Trainer(Backend& backend, RunConfig config, const Groups& groups, Startup startup)
    : backend_(backend),
      groups_(&groups),
      config_(with_past_batches(std::move(config))),
      directory_(config_.run.dir),
      batches_(config_.batches()),
      startup_(std::move(startup)) {
  data_ = std::make_unique<RunData>(config_);
  startup_.mark("load data");
  if (is_first() && !config_.train.eval_tasks.empty()) {
    tasks_ = std::make_unique<RunTasks>(config_, data_->tokenizer());
    startup_.mark("load tasks");
  }
  if (!config_.train.samples.prompts.empty()) samples_.emplace(config_, data_->tokenizer());
  schedule_ = schedule_of(config_);
  for (std::int64_t i = 0; i < config_.stage; ++i)  // open_run() adds the runs before this one
    schedule_.first_step += config_.stages[static_cast<std::size_t>(i)].total_steps();
  if (config_.train.precision == DType::F16) scaler_ = LossScaler(config_.train.loss_scale);
  health_ =
      RunHealth(config_.train.max_skipped_steps,
                scaler_.dynamic() ? std::optional(config_.train.loss_scale.minimum) : std::nullopt);
  outliers_ = OutlierHistory(config_.optimizer.skip_step);
  spikes_ = SpikeHistory(config_.train.spikes);
  flops_ = training_flops_per_token(config_.model, config_.data.sequence_length);
  if (is_first())
    tokenizer_files_ = tokenizer_files(data_->tokenizer(), config_.model, data_->chat_format());
  check_other_run(config_);
  if (config_.stage == 0 && list_checkpoints(directory_ / "checkpoints").empty()) {
    if (!config_.model_init.empty()) {
      check_initial_weights(config_.model_init, config_.model, backend_, initial_options(config_));
      subtokens_of(config_, data_->tokenizer());  // refuses a directory without a tokenizer
    }
    if (config_.run.from) start_of_branch(config_);
    if (config_.objective.kind == ObjectiveKind::Dpo && config_.model_init.empty() &&
        !config_.run.from)
      user_error(
          "objective dpo improves a trained model, which is also its reference: set model.init");
    if (config_.model.lora.on() && !config_.run.from) base_of_run(config_, "");
  }
  if (config_.model.fp8.on()) check_fp8_device();
  check_memory(backend_, config_, *groups_);
  snapshot_plan_ = plan_snapshot(backend_, config_, *groups_);
  startup_.mark("plan memory");
  if (is_first()) watch_for_stops();
}

std::function<void()> Trainer::note_failure(const RankFailure& failure) {
  RunLog* log = open_log_;
  return log != nullptr ? log->fail(failure) : nullptr;
}

void Trainer::sum_over_ranks(std::span<double> values) {
  host().wait(host().all_reduce(
      Tensor(values.data(), DType::F64, {static_cast<std::int64_t>(values.size())})));
}

void Trainer::sum_over_ranks(StepSums& sums) {
  Rewards& rewards = sums.of_step.rewards;
  const std::array<double*, 10> own = {
      &sums.of_step.loss, &sums.of_step.z, &rewards.chosen, &rewards.rejected, &rewards.accuracy,
      &sums.next_targets, &sums.stops,     &sums.outliers,  &sums.saved,       &sums.save_due};
  std::vector<double> values;
  for (const double* value : own) values.push_back(*value);
  if (energy_ != nullptr) append_values(sums.energy, values);
  sum_over_ranks(values);
  for (std::size_t i = 0; i < own.size(); ++i) *own[i] = values[i];
  if (energy_ != nullptr) sums.energy = energy_totals_of(std::span(values).subspan(own.size()));
  targets_ = sums.next_targets;
  stops_.decide(sums.stops);
  save_due_ = sums.save_due > 0;
}

void Trainer::read_first_batch() {
  StepSums start{.next_targets = load_next_batch(state_.step + 1, nullptr), .stops = stops_.ask()};
  sum_over_ranks(start);
}

RunOutcome Trainer::run(ResumeMode resume) {
  const StopSignals signals;
  open_run(resume);
  sum_energy();
  energy_recorded_ = energy_now_;
  if (is_first()) {
    check_time_left();
    log_->goodput().start(beginning());
    log_->events().begin_steps();
  }
  write_status({}, NAN);
  if (profile_ != nullptr) profile_->open(*groups_, directory_, profile_facts());
  last_report_ = loop_begin_ = Clock::now();
  try {
    read_first_batch();
    while (!finished() && !stops_.decided()) {
      if (profile_ != nullptr) profile_->before_step(state_.step + 1);
      if (groups_->recorder != nullptr) groups_->recorder->begin_step(state_.step + 1);
      train_step();
      if (groups_->recorder != nullptr) groups_->recorder->end_step();
      find_straggler();
      if (const std::string why = trouble(); !why.empty()) {
        if (is_first()) log_->record(record_);
        if (profile_ != nullptr) profile_->after_step(record_.step_time_s);
        if (!rewind(why)) end_diverged(why);
        continue;
      }
      if (profile_ != nullptr) profile_->after_step(record_.step_time_s);
      if (!std::exchange(startup_reported_, true)) {
        startup_.mark("first step");
        log_info("startup {}", startup_.summary());
      }
      // Skip validation after a stop signal: saving is urgent. validate() updates stops_.
      const std::int64_t every = config_.train.eval_every;
      if (every > 0 && !stops_.decided() && (due(every) || finished())) validate();
      if (tasks_are_due()) evaluate_tasks();
      if (samples_are_due()) generate_samples();
      if (is_first()) {
        lock_->check_in_place();
        log_->record(record_, saver_ && saver_->under_way());
        report(stops_.decided() || finished());
      }
      const bool saves = save_is_due();
      check_replicas(saves);
      if (saves) save();
      copy_to_memory();
    }
    // A stop before the first step, or in the step that caused a rewind.
    if (unsaved_ && stops_.decided() && config_.train.save) save();
    close_content_check();
    remove_memory_copies();  // everything is in a checkpoint
    if (profile_ != nullptr) profile_->close();
    if (is_first()) log_->flush();
    if (is_first()) report_saves();
    gather_energy();
  } catch (const RunDirectoryMoved&) {
    open_log_ = nullptr;  // nothing can be recorded
    throw;
  } catch (const SharedFailure& error) {
    finish_save_after_error();
    write_status(failed_state(error.failure(), true), NAN);
    throw;
  } catch (const std::exception& error) {
    const bool shared = dynamic_cast<const SharedUserError*>(&error) != nullptr;
    write_status(failed_state(failure_of(error, {host().rank(), node_name()}), shared), NAN);
    throw;
  }
  // A request in the last step of a stage stops the run before the next one.
  const bool stopped = !finished() || (stops_.decided() && config_.steps_after() > 0);
  report_stop(stopped);
  return stopped ? RunOutcome::Stopped : RunOutcome::Finished;
}

void Trainer::train_step() {
  const auto begin = Clock::now();
  const EnergySpan energy(energy_, RunPhase::Steps);
  const std::int64_t step = state_.step + 1;
  const double lr = schedule_.learning_rate(step);
  const StepLimits limits = outliers_.limits();
  Trace* trace = profile_ == nullptr ? nullptr : profile_->active();
  const HostSpan whole(trace, trace == nullptr ? "" : fmt::format("step {}", step));
  if (batch_ == nullptr) batch_ = &loader_->next();  // rethrows an error that was deferred
  const double targets_of_step = targets_;
  const double targets = loss_divisor(targets_of_step);
  {
    const HostSpan span(trace, "queue the step");
    engine_->begin_step(tokens(), {.step = step,
                                   .lr = lr,
                                   .loss_scale = scaler_.scale(),
                                   .dropout = config_.train.dropout,
                                   .seed = config_.run.seed,
                                   .first_sequence = first_sequence(step),
                                   .targets = targets,
                                   .limits = limits,
                                   .fp8_statistics = fp8_statistics_are_due(step)});
  }
  loader_->release();  // continue reading while the device computes
  batch_ = nullptr;
  const auto queued = Clock::now();
  StepSums sums{.next_targets = load_next_batch(step + 1, trace)};
  const double data_wait_s = seconds_since(queued);
  const StepResult result = [&]() -> StepResult {
    const HostSpan span(trace, "wait for its result");
    const LocalStepResult local = engine_->finish_step();
    if (saver_) saver_->after_step();
    sums.of_step = local.sums;
    sums.outliers = local.outlier ? 1 : 0;
    sums.stops = stops_.ask();
    sums.saved = save_ended();
    sums.save_due = save_interval_ && save_interval_->due(Clock::now()) ? 1 : 0;
    sums.energy = own_energy();
    sum_over_ranks(sums);
    return {.loss = sums.of_step.loss / targets,
            .z_loss = config_.train.z_loss * sums.of_step.z / targets,
            .gradient_norm = local.gradient_norm,
            .outlier = sums.outliers > 0,
            .rewards = sums.of_step.rewards.divided_by(targets)};
  }();
  if (result.outlier && sums.outliers < groups_->ranks())
    throw SharedFailure(fmt::format(
        "only {} of {} ranks skipped step {} as an outlier, so their weights differ: run again to "
        "continue from the newest checkpoint",
        sums.outliers, groups_->ranks(), step));
  refuse_other_data(step);
  if (sums.saved == groups_->ranks()) finish_save();
  const CommunicationTimes communication = communication_times();
  divergence_ = health_.after_step(*engine_, result, scaler_.scale());
  const std::int64_t sequences = batches_.sequences(step);
  const std::int64_t tokens_of_step = sequences * config_.data.sequence_length;
  record_ = {.step = step,
             .time_s = startup_.now_s(),
             .tokens = state_.tokens + tokens_of_step,
             .step_tokens = tokens_of_step,
             .targets = static_cast<std::int64_t>(targets_of_step),
             .loss = result.loss,
             .gradient_norm = result.gradient_norm,
             .lr = lr,
             .loss_scale = scaler_.scale(),
             .data_wait_s = data_wait_s,
             .stage = config_.stages.empty() ? "" : config_.stage_name,
             .memory_bytes = engine_->arena().total_bytes() + backend_.own_bytes()};
  if (config_.train.z_loss > 0) record_.z_loss = result.z_loss;
  if (preference()) record_rewards(result.rewards);
  if (fp8_statistics_are_due(step)) record_fp8_statistics();
  note_skipped(result, limits);
  outliers_.add(result.loss, result.gradient_norm);
  spike_ = result.outlier ? "" : find_spike(result.loss);
  spikes_.add(result.loss);
  if (config_.batch.ramp.on()) record_.batch = sequences;
  scaler_.update(!std::isfinite(result.gradient_norm));
  unsaved_ = false;
  state_.step = step;
  state_.tokens = record_.tokens;
  state_.samples += sequences;
  state_.loss_scale = scaler_.state();
  state_.skipped = health_.skipped();
  state_.outliers = health_.outliers();
  state_.recent = outliers_.state();
  state_.spikes = spikes_.state();
  record_.step_time_s = seconds_since(begin);
  record_.tokens_per_s = static_cast<double>(tokens_of_step) / record_.step_time_s;
  check_peak();
  record_.mfu_causal = mfu(record_.tokens_per_s, flops_.causal());
  record_.mfu_full = mfu(record_.tokens_per_s, flops_.full());
  record_energy(sums.energy);
  means_.add(record_, tokens_of_step);
  apply_power_policy();
  step_seconds_ += record_.step_time_s;
  stops_.wall_time().note_step(record_.step_time_s);
  if (groups_->ranks() > 1) record_communication(communication);
  if (is_first()) {
    log_->events().note_step(step, record_.step_time_s);
    log_->goodput().note_step({.step = step,
                               .tokens = state_.tokens,
                               .seconds = record_.step_time_s,
                               .exposed_s = record_.comm_wait_s.value_or(0)});
  }
  compute_s_ += record_.step_time_s - record_.comm_wait_s.value_or(0);
  ++compute_steps_;
}

// Throws on the first rank, which alone has the check, if it has found a file that changed.
void Trainer::refuse_other_data(std::int64_t step) const {
  if (!content_check_ || !content_check_->found_change()) return;
  try {
    content_check_->rethrow();
  } catch (const UserError& error) {
    user_error(
        "{}; steps {} to {} of this run have read it: go on from a checkpoint before them "
        "(checkpoints/latest), or start in another run.dir",
        error.what(), before_.steps + 1, step);
  }
}

void Trainer::close_content_check() {
  together(host(), [&] { refuse_other_data(state_.step); });
  if (content_check_ && content_check_->unread_bytes() > 0)
    log_info("{} of the data were not compared yet: the next start of this run does it",
             format_bytes(static_cast<double>(content_check_->unread_bytes())));
  content_check_.reset();
}

std::optional<double> Trainer::mfu(double tokens_per_s, double flops_per_token) const {
  if (!peak_is_known_) return {};
  return tokens_per_s * flops_per_token / (peak_.flops_per_s * groups_->ranks());
}

// A step that is faster than the measured peak shows that the peak, and so every MFU, is wrong.
void Trainer::check_peak() {
  const auto utilization = mfu(record_.tokens_per_s, flops_.causal());
  if (!utilization || *utilization <= 1) return;
  peak_is_known_ = false;
  if (!is_first()) return;
  log_info(
      "step {} reached {}FLOP/s per rank, more than the peak of {}FLOP/s ({}): other work "
      "disturbed the measurement of the peak, so MFU is no longer reported",
      record_.step, format_si(*utilization * peak_.flops_per_s), format_si(peak_.flops_per_s),
      peak_.source);
}

TokenBatch Trainer::tokens() {
  return {.ids = batch_->ids,
          .targets = batch_->targets,
          .positions = batch_->positions,
          .document_start = batch_->document_start,
          .weights = target_weights(batch_->targets),
          .sequences = pairs_of(*batch_)};
}

ProfileFacts Trainer::profile_facts() {
  const Backend::DeviceFacts device = backend_.device_facts();
  return {.device = backend_.description(),
          .precision = std::string(to_string(config_.train.precision)),
          .peak_flops = peak_.flops_per_s,
          .memory_bytes_per_s = device.memory_bytes_per_s,
          .multiprocessors = device.multiprocessors,
          .config = to_public_yaml(config_),
          .stage = config_.stage};
}

double Trainer::load_next_batch(std::int64_t step, Trace* trace) {
  if (step > schedule_.last_step()) return 0;
  const HostSpan span(trace, "data wait", SpanKind::Data);
  try {
    batch_ = &loader_->next();
  } catch (const std::exception&) {
    return 0;
  }
  return engine_->targets_of(tokens());
}

CommunicationTimes Trainer::communication_times() const {
  CommunicationTimes now;
  for (const GroupSpec& spec : group_specs()) {
    if (spec.kind == GroupKind::HostTp || spec.kind == GroupKind::Checkpoint) continue;  // saves
    const CommunicationTimes one = (*groups_)[spec.kind].times();
    now.busy_s += one.busy_s;
    now.waited_s += one.waited_s;
    now.bytes += one.bytes;
  }
  return now;
}

void Trainer::record_communication(const CommunicationTimes& now) {
  record_.comm_busy_s = now.busy_s - communication_.busy_s;
  record_.comm_wait_s = now.waited_s - communication_.waited_s;
  record_.comm_bytes = now.bytes - communication_.bytes;
  communication_ = now;
}

}  // namespace kintsugi
