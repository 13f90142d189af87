#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "comm/grid.h"
#include "core/progress.h"
#include "optim/schedule.h"
#include "train/checkpoint/checkpoint.h"
#include "train/config/config.h"
#include "train/engine.h"
#include "train/job_energy.h"
#include "train/records/run_log.h"
#include "train/run_data.h"
#include "train/run_lock.h"
#include "train/startup.h"
#include "train/step_profile.h"
#include "train/stop_requests.h"

namespace kintsugi {

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The checkpoint that a run continues from.
struct RunStart {
  std::filesystem::path checkpoint;
  bool other_run = false;  // that of run.from
};

// The checkpoints of a run up to now.
struct LastCheckpoints {
  std::string last, healthy;        // paths; empty: there is none
  bool of_other_run = false;        // `healthy` is that of run.from
  std::vector<Ancestor> ancestors;  // of the next checkpoint; on rank 0
};

// What the parts of a Trainer share: what the run trains on, with what, and how far it is.
struct RunContext {
  // Opens the data. The groups must outlive it.
  RunContext(Backend& backend, RunConfig config, const Groups& groups, Startup startup = {});

  bool is_first() const { return groups.is_first(); }
  Communicator& host() const { return groups[GroupKind::World]; }
  int nodes() const { return (groups.ranks() + groups.node_ranks - 1) / groups.node_ranks; }
  void sum_over_ranks(std::span<double> values) const;
  // Sum over all groups since the start, without those of saves. Throws Failure if a call was
  // abandoned, because the step then has no result.
  CommunicationTimes communication_times() const;

  bool preference() const { return config.objective.kind == ObjectiveKind::Dpo; }
  bool due(std::int64_t every) const { return every > 0 && state.step % every == 0; }
  bool finished() const { return state.step >= schedule.last_step(); }  // the stage
  std::int64_t last_step() const { return schedule.last_step() + config.steps_after(); }
  // Whether a new stage begins with a checkpoint of this state.
  bool begins_stage(const RunStart& start, const TrainerState& saved) const {
    return start.other_run || saved.stage != config.stage;
  }
  // The run continues from `state`: the steps of this process follow it.
  void continue_from_state();

  // Signs of life between the ends of two steps, from any thread.
  void note_activity() const;
  ProgressCall noting_activity(Progress& progress) const;  // shows it and notes it
  void note_validation_time(double seconds) const;
  RunEvents* events() const { return is_first() && log ? &log->events() : nullptr; }
  void watch_for_stops();  // creates `stops`; on rank 0
  void check_time_left();  // warns if the job ends before anything can be trained
  // Whether the ranks are asked to stop now; all of them call it.
  bool interrupted();

  Backend& backend;
  const Groups& groups;
  RunConfig config;  // completed from the data
  std::filesystem::path directory;
  Startup startup;
  std::unique_ptr<RunData> data;
  std::unique_ptr<Engine> engine;           // once the run is open
  std::unique_ptr<RunLock> lock;            // one job per run directory; on rank 0
  std::unique_ptr<RunLog> log;              // on rank 0
  std::atomic<RunLog*> open_log = nullptr;  // log.get() once it is open
  Schedule schedule;
  BatchSchedule batches;  // of the steps of this process
  BatchesDone before;     // steps and samples before this process
  TrainerState state;
  bool unsaved = false;  // `state` is of a copy in memory or a rewind, and no step followed
  StepRecord record;     // of the last step
  LastCheckpoints checkpoints;
  StopRequests stops;                // decided alike on all ranks
  CommunicationTimes communication;  // up to the last step
  JobEnergy* energy = nullptr;       // optional
  StepProfile* profile = nullptr;    // optional
};

}  // namespace kintsugi
