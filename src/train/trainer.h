#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "backend/backend.h"
#include "comm/exchange.h"
#include "comm/grid.h"
#include "train/config/config.h"
#include "train/job_energy.h"
#include "train/records/run_log.h"
#include "train/run_data.h"
#include "train/run_lock.h"
#include "train/startup.h"
#include "train/step_profile.h"

namespace kintsugi {

// Auto: continue from the latest checkpoint in the run directory, if there is one. Never: start a
// new run; UserError if the directory already has one.
enum class ResumeMode { Auto, Never };
enum class RunOutcome { Finished, Stopped };

// The checkpoint to continue from was damaged and is set aside: a new Trainer continues from the
// one before. All ranks throw it together.
class CheckpointSetAside : public SharedFailure {
 public:
  using SharedFailure::SharedFailure;
};

// One training run, or one stage of it. Reads batches, steps the engine, validates, writes metrics,
// saves checkpoints and stops on signals: each is a part of its own (train/trainer/), and this says
// in which order they act.
class Trainer {
 public:
  // Checks the whole input before it allocates memory or writes a file, except for the index of
  // packed data. Every rank of the job
  // constructs one; rank 0 owns the terminal and the files. The groups must outlive the trainer.
  Trainer(Backend& backend, RunConfig config, const Groups& groups, Startup startup = {});
  Trainer(Backend& backend, RunConfig config);  // on one rank
  ~Trainer();

  // Call before run(): records the steps that `profile` asks for. `profile` must outlive the run.
  void profile_with(StepProfile& profile);
  StepProfile* profile() const;
  // Call before run(): measures the energy of the run. `energy` must outlive it.
  void meter_with(JobEnergy& energy);
  RunOutcome run(ResumeMode resume);
  // Call instead of run(): logs sizes, layout, memory, steps and the estimated duration. `starts`:
  // run() would be called, so its errors and warnings about the run directory are reported too;
  // nothing is written.
  void preview(bool starts);

  const std::filesystem::path& directory() const;
  const RunConfig& config() const;  // completed from the data
  const RunData& data() const;
  Startup& startup();
  // The lock of the run directory, for the trainer of the next stage.
  std::unique_ptr<RunLock> release_lock();
  void keep_lock(std::unique_ptr<RunLock> lock);
  // Records in status.json that another rank ended the job. Thread-safe during run(). Returns what
  // RunLog::fail returns.
  std::function<void()> note_failure(const RankFailure& failure);
  StopCause stop_cause() const;  // after run()

 private:
  struct Parts;
  void open(ResumeMode resume);
  void train();
  void after_step();

  std::unique_ptr<Groups> own_groups_;  // only without given groups
  std::unique_ptr<Parts> parts_;
};

}  // namespace kintsugi
