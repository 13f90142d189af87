#include "train/trainer.h"

#include <cmath>
#include <utility>

#include "comm/flight_recorder.h"
#include "comm/launch_environment.h"
#include "core/error.h"
#include "core/log.h"
#include "train/engine_options.h"
#include "train/memory_check.h"
#include "train/stop_requests.h"
#include "train/trainer/evaluations.h"
#include "train/trainer/run_control.h"
#include "train/trainer/run_opening.h"
#include "train/trainer/spike_policy.h"
#include "train/trainer/step_loop.h"

namespace kintsugi {
namespace {

ProfileFacts profile_facts(const RunContext& run, const Backend::Peak& peak) {
  const Backend::DeviceFacts device = run.backend.device_facts();
  return {.device = run.backend.description(),
          .precision = std::string(to_string(run.config.train.precision)),
          .peak_flops = peak.flops_per_s,
          .memory_bytes_per_s = device.memory_bytes_per_s,
          .multiprocessors = device.multiprocessors,
          .config = to_public_yaml(run.config),
          .stage = run.config.stage};
}

}  // namespace

// In the order in which a run checks its input.
struct Trainer::Parts {
  Parts(Backend& backend, RunConfig given, const Groups& groups, Startup startup)
      : run(backend, std::move(given), groups, std::move(startup)) {
    run.startup.mark("plan memory");
    if (run.is_first()) run.watch_for_stops();
  }

  RunContext run;
  Evaluations evaluations{run};
  StepGuard guard{run.config};
  PreferenceReference reference{run};
  BatchFeed feed{run, reference};
  MemoryCopyPolicy copies{run, guard};
  RunOpening opening{run, {.guard = guard, .feed = feed, .copies = copies, .reference = reference}};
  EnergyAccount energy{run};
  SavePolicy saves{run, guard, energy};
  SpikePolicy spikes{run, guard, saves, opening};
  Validation validation{run, feed, reference};
  ProgressReport progress{run, energy, validation};
  Fp8Statistics fp8{run};
  ExpertLoads experts{run};
  RankChecks ranks{run};
  RunControl control{run};
  StepLoop steps{run,
                 {.guard = guard,
                  .feed = feed,
                  .saves = saves,
                  .energy = energy,
                  .progress = progress,
                  .fp8 = fp8,
                  .experts = experts,
                  .ranks = ranks,
                  .control = control}};
  bool startup_reported = false;
};

Trainer::Trainer(Backend& backend, RunConfig config)
    : own_groups_(std::make_unique<Groups>(single_rank_groups(backend))),
      parts_(std::make_unique<Parts>(backend, std::move(config), *own_groups_, Startup())) {}

Trainer::Trainer(Backend& backend, RunConfig config, const Groups& groups, Startup startup)
    : parts_(std::make_unique<Parts>(backend, std::move(config), groups, std::move(startup))) {}

Trainer::~Trainer() = default;

void Trainer::profile_with(StepProfile& profile) { parts_->run.profile = &profile; }
StepProfile* Trainer::profile() const { return parts_->run.profile; }
void Trainer::meter_with(JobEnergy& energy) { parts_->energy.meter_with(energy); }
const std::filesystem::path& Trainer::directory() const { return parts_->run.directory; }
const RunConfig& Trainer::config() const { return parts_->run.config; }
const RunData& Trainer::data() const { return *parts_->run.data; }
Startup& Trainer::startup() { return parts_->run.startup; }
std::unique_ptr<RunLock> Trainer::release_lock() { return std::move(parts_->run.lock); }
void Trainer::keep_lock(std::unique_ptr<RunLock> lock) { parts_->run.lock = std::move(lock); }

std::function<void()> Trainer::note_failure(const RankFailure& failure) {
  RunLog* log = parts_->run.open_log;
  return log != nullptr ? log->fail(failure) : nullptr;
}

StopCause Trainer::stop_cause() const { return parts_->run.stops.cause(); }

void Trainer::preview(bool starts) {
  RunContext& run = parts_->run;
  if (starts && run.is_first()) {
    parts_->opening.report_origin(parts_->opening.preview());
    parts_->saves.warn_if_waiting();
    run.check_time_left();
  }
  parts_->progress.measure_peak();
  parts_->progress.announce(parts_->evaluations.tasks());
  PlanningAllocator nothing;
  const Engine planned(run.backend, nothing, engine_options(run.config, run.groups.ranks()),
                       run.groups);
  log_info("{}", memory_table(planned.arena(), run.backend));
  parts_->saves.report_memory();
  log_info("run directory: {}", run.directory.string());
  parts_->progress.estimate_duration();
}

void Trainer::open(ResumeMode resume) {
  RunContext& run = parts_->run;
  parts_->control.read_history();
  const RunOpening::Opened opened = parts_->opening.open(resume);
  parts_->evaluations.find_evaluated();
  parts_->feed.open();
  parts_->saves.open();
  run.startup.mark("open run");
  parts_->progress.measure_peak();
  run.startup.mark("measure peak");
  parts_->progress.announce(parts_->evaluations.tasks());
  log_info("{}", memory_table(run.engine->arena(), run.backend));
  if (parts_->saves.in_background()) parts_->saves.report_memory();
  parts_->copies.open();
  log_info("run directory: {}", run.directory.string());
  parts_->progress.write_layout();
  parts_->opening.report_origin(opened);
  parts_->control.settle();
  if (run.finished() && run.config.steps_after() == 0)
    log_info("all {} steps are done: to train on, {}", run.state.step,
             run.config.stages.empty() ? "raise train.steps or train.tokens"
                                       : "lengthen the last stage or add one");
}

RunOutcome Trainer::run(ResumeMode resume) {
  const StopSignals signals;
  RunContext& run = parts_->run;
  ProgressReport& progress = parts_->progress;
  open(resume);
  parts_->energy.begin_steps();
  if (run.is_first()) {
    run.check_time_left();
    run.log->goodput().start(parts_->energy.beginning());
    run.log->events().begin_steps();
  }
  progress.write_status({}, NAN);
  if (run.profile != nullptr)
    run.profile->open(run.groups, run.directory, profile_facts(run, progress.peak()));
  progress.begin_steps();
  try {
    train();
  } catch (const RunDirectoryMoved&) {
    run.open_log = nullptr;  // nothing can be recorded
    throw;
  } catch (const SharedFailure& error) {
    parts_->saves.finish_after_error();
    progress.write_status(failed_state(error.failure(), true), NAN);
    throw;
  } catch (const std::exception& error) {
    const bool shared = dynamic_cast<const SharedUserError*>(&error) != nullptr;
    const RankFailure failure = failure_of(error, {run.host().rank(), node_name()});
    progress.write_status(failed_state(failure, shared), NAN);
    throw;
  }
  // A request in the last step of a stage stops the run before the next one.
  const bool stopped = !run.finished() || (run.stops.decided() && run.config.steps_after() > 0);
  progress.report_stop(stopped);
  return stopped ? RunOutcome::Stopped : RunOutcome::Finished;
}

void Trainer::train() {
  RunContext& run = parts_->run;
  FlightRecorder* const recorder = run.groups.recorder;
  parts_->steps.read_first_batch();
  while (!run.finished() && !run.stops.decided()) {
    if (run.profile != nullptr) run.profile->before_step(run.state.step + 1);
    if (recorder != nullptr) recorder->begin_step(run.state.step + 1);
    parts_->steps.train_step();
    if (recorder != nullptr) recorder->end_step();
    parts_->ranks.find_straggler(parts_->progress.means().step_time_s());
    const std::string trouble = parts_->spikes.trouble();
    if (!trouble.empty() && run.is_first()) run.log->record(run.record);
    if (run.profile != nullptr) run.profile->after_step(run.record.step_time_s);
    if (trouble.empty()) {
      after_step();
      continue;
    }
    if (!parts_->spikes.rewind(trouble)) parts_->saves.end_diverged(trouble);
    parts_->progress.restart();
    parts_->control.settle();
    parts_->evaluations.forget_evaluated();
    parts_->steps.read_first_batch();
  }
  // A stop before the first step, or in the step that caused a rewind.
  if (run.unsaved && run.stops.decided() && run.config.train.save) parts_->saves.save();
  parts_->control.close();
  parts_->feed.close_content_check();
  parts_->copies.remove();  // everything is in a checkpoint
  if (run.profile != nullptr) run.profile->close();
  if (run.is_first()) {
    run.log->flush();
    parts_->saves.report(parts_->progress.run_seconds());
  }
  parts_->energy.gather();
}

// Everything between a step that went well and the next one.
void Trainer::after_step() {
  RunContext& run = parts_->run;
  Evaluations& evaluations = parts_->evaluations;
  SavePolicy& saves = parts_->saves;
  if (!std::exchange(parts_->startup_reported, true)) {
    run.startup.mark("first step");
    log_info("startup {}", run.startup.summary());
  }
  RunControl& control = parts_->control;
  control.take_request();
  if (control.wants_checkpoint()) saves.ask();
  // Skip validation after a stop signal: saving is urgent. validate() updates run.stops.
  const std::int64_t every = run.config.train.eval_every;
  if (every > 0 && !run.stops.decided() &&
      (run.due(every) || run.finished() || control.wants_evaluation()))
    parts_->validation.validate();
  if (evaluations.tasks_are_due(saves.is_due(), control.wants_evaluation()))
    evaluations.evaluate_tasks();
  if (evaluations.samples_are_due(saves.is_due())) evaluations.generate_samples();
  if (run.is_first()) {
    run.lock->check_in_place();
    run.log->record(run.record, saves.under_way());
    parts_->progress.report(run.stops.decided() || run.finished());
  }
  const bool due = saves.is_due();
  parts_->ranks.check_replicas(due);
  if (due) saves.save();
  parts_->copies.copy();
}

}  // namespace kintsugi
