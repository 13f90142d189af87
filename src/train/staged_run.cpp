#include "train/staged_run.h"

#include "comm/exchange.h"
#include "core/error.h"
#include "core/log.h"
#include "train/config/changes.h"
#include "train/engine_options.h"
#include "train/memory_check.h"
#include "train/run_history.h"

namespace kintsugi {
namespace {

// Names the stage in the errors of `make`.
void for_stage(const RunConfig& stage, const auto& make) {
  try {
    make();
  } catch (const UserError& error) {
    if (stage.stages.empty()) throw;
    user_error("{}: {}", stage.stage_title(), error.what());
  }
}

// Of the newest checkpoint that can be read. One that cannot be read is reported when it is loaded.
std::optional<TrainerState> newest_state(const std::filesystem::path& folder) {
  for (const std::filesystem::path& one : peek_checkpoints(folder)) try {
      return saved_state(one);
    } catch (const UserError&) {
      continue;
    }
  return std::nullopt;
}

}  // namespace

std::int64_t stage_to_train(const RunConfig& config) {
  const RunConfig run = with_past_batches(config);
  const std::filesystem::path folder = std::filesystem::path(run.run.dir) / "checkpoints";
  const std::optional<TrainerState> found = newest_state(folder);
  if (!found) return 0;
  const TrainerState& state = *found;
  if (state.stage >= run.stage_count())
    user_error(
        "the run in {} is in stage {}, but the configuration has {}: restore its stages, or choose "
        "another run.dir",
        run.run.dir, state.stage + 1, run.stage_count());
  const std::int64_t end = state.stage_start + run.at_stage(state.stage).total_steps();
  return state.step >= end && state.stage + 1 < run.stage_count() ? state.stage + 1 : state.stage;
}

StagedRun::StagedRun(Backend& backend, const RunConfig& run, std::int64_t first, GroupsOf groups,
                     Startup startup, const UseTrainer& checked)
    : backend_(backend), run_(run), first_(first), groups_(std::move(groups)) {
  const Groups& own = groups_(run_.at_stage(first_));
  const RunConfig stage = run_.at_stage(first_);
  for_stage(stage, [&] { trainer_.emplace(backend_, stage, own, std::move(startup)); });
  if (checked) checked(*trainer_);
  for (std::int64_t number = first_ + 1; number < run_.stage_count(); ++number)
    check_later_stage(number, own, checked);
  if (own[GroupKind::World].rank() == 0)
    for (const std::string& jump : planned_jumps(run_, first_)) log_warning("{}", jump);
}

// A trainer checks everything when it is constructed. Planned groups are enough for that.
void StagedRun::check_later_stage(std::int64_t number, const Groups& groups,
                                  const UseTrainer& checked) {
  const RunConfig stage = run_.at_stage(number);
  for_stage(stage, [&] {
    const Grid grid = grid_of(layout_on(stage, groups.ranks()), stage.model);
    Groups planned = planned_groups(grid, coordinates_of(grid, groups[GroupKind::World].rank()));
    planned.node_ranks = groups.node_ranks;
    Trainer trainer(backend_, stage, planned);
    if (checked) checked(trainer);
  });
}

void StagedRun::next_trainer(std::int64_t number, std::unique_ptr<RunLock> lock,
                             const Startup& startup) {
  const RunConfig next = run_.at_stage(number);
  const Groups& groups = groups_(next);
  together(groups[GroupKind::World], [&] { trainer_.emplace(backend_, next, groups, startup); });
  trainer_->keep_lock(std::move(lock));
}

// As if the process had been started again: the checkpoint before may belong to an earlier stage or
// have other batches.
std::int64_t StagedRun::restart(std::int64_t number, const CheckpointSetAside& reason) {
  std::unique_ptr<RunLock> lock = trainer_->release_lock();
  StepProfile* const profile = trainer_->profile();
  const Startup startup = trainer_->startup();
  trainer_.reset();
  Communicator& host = groups_(run_.at_stage(number))[GroupKind::World];
  std::string stage;
  together(host, [&] {
    if (host.rank() == 0) stage = std::to_string(stage_to_train(run_));
  });
  number = std::stoll(text_of(host, 0, stage));
  if (number < first_) throw SharedFailure(reason.failure());  // its layout was not completed
  next_trainer(number, std::move(lock), startup);
  if (profile != nullptr) trainer_->profile_with(*profile);
  return number;
}

RunOutcome StagedRun::run(ResumeMode resume, const WatchTrainer& watch) {
  const StopSignals signals;  // a signal between two stages ends the run too
  for (std::int64_t number = first_;;) {
    if (watch) watch(&*trainer_);
    try {
      const RunOutcome outcome = trainer_->run(resume);
      if (outcome == RunOutcome::Stopped || number + 1 == run_.stage_count()) return outcome;
    } catch (const CheckpointSetAside& reason) {
      if (watch) watch(nullptr);
      number = restart(number, reason);
      continue;
    }
    resume = ResumeMode::Auto;
    if (watch) watch(nullptr);
    std::unique_ptr<RunLock> lock = trainer_->release_lock();
    const Startup startup = trainer_->startup().of_next_stage();
    StepProfile* const profile = trainer_->profile();
    trainer_.reset();  // its memory is free before the next stage is checked
    next_trainer(++number, std::move(lock), startup);
    if (profile != nullptr) trainer_->profile_with(*profile);
  }
}

}  // namespace kintsugi
