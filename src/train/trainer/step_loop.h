#pragma once

#include <cstdint>

#include "train/trainer/batch_feed.h"
#include "train/trainer/energy_account.h"
#include "train/trainer/expert_loads.h"
#include "train/trainer/fp8_statistics.h"
#include "train/trainer/progress_report.h"
#include "train/trainer/rank_checks.h"
#include "train/trainer/run_control.h"
#include "train/trainer/save_policy.h"
#include "train/trainer/step_guard.h"

namespace kintsugi {

// The steps of a run: the batch, the engine's step, the one all-reduce of what all ranks must know,
// and the record of the step. Everything between two steps is left to the Trainer.
class StepLoop {
 public:
  struct Parts {
    StepGuard& guard;
    BatchFeed& feed;
    SavePolicy& saves;
    EnergyAccount& energy;
    ProgressReport& progress;
    Fp8Statistics& fp8;
    ExpertLoads& experts;
    RankChecks& ranks;
    RunControl& control;
  };
  StepLoop(RunContext& run, const Parts& parts) : run_(run), parts_(parts) {}

  void read_first_batch();  // of this process, or after a rewind
  void train_step();

 private:
  // Summed over all ranks by one all-reduce on host memory at the end of each step. A step has no
  // other collective on host memory.
  struct StepSums {
    LossSums of_step = {};     // what Engine::scalars() declares
    double next_targets = 0;   // Engine::targets_of the batches of the next step
    double stops = 0;          // what asks the ranks to stop: StopRequests::ask
    double outliers = 0;       // number of ranks that skipped this step as an outlier: all or none
    double saved = 0;          // number of ranks whose save in the background has ended
    double save_due = 0;       // 1 from rank 0: save now (train.checkpoint_every: auto)
    double control = 0;        // 1 from rank 0: kintsugi ctl asks for something
    EnergyTotals energy = {};  // since the launch
  };
  void sum_over_ranks(StepSums& sums);
  void queue_step(std::int64_t step, const StepLimits& limits, Trace* trace);
  StepResult finish_step(StepSums& sums, double targets, Trace* trace);
  void begin_record(const StepResult& result, std::int64_t step);
  void end_record(const StepSums& sums, const CommunicationTimes& communication);

  RunContext& run_;
  Parts parts_;
  double targets_ = 0;  // of the next step, over all ranks: Engine::targets_of
};

}  // namespace kintsugi
