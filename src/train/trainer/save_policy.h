#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpoint/background_save.h"
#include "train/checkpoint/memory_copies.h"
#include "train/memory_check.h"
#include "train/trainer/energy_account.h"
#include "train/trainer/run_context.h"
#include "train/trainer/step_guard.h"

namespace kintsugi {

// The seconds between two saves that lose least time: sqrt(2 * cost * mtbf) (Young 1974, Daly
// 2006). `cost_s` is what one save costs the training, `mtbf_s` the mean time between failures.
double young_daly_s(double cost_s, double mtbf_s);

// The mean time between failures of a job on this many nodes, from Llama 3's training (2024): 419
// unexpected interruptions in 54 days on 2,048 nodes of 8 GPUs.
double mtbf_of_nodes_s(double nodes);

// Decides on rank 0 when a save is due, with train.checkpoint_every: auto.
class SaveInterval {
 public:
  using Clock = std::chrono::steady_clock;

  SaveInterval(double mtbf_s, Clock::time_point start);

  bool due(Clock::time_point now) const;
  void began(Clock::time_point now) { last_ = now; }
  // Call after each save with what it cost the training and how long it took until it was
  // published. Returns whether the interval has changed by more than 10 % since the last report.
  bool measured(double cost_s, double duration_s);

  double seconds() const { return seconds_; }
  double cost_s() const { return cost_s_; }
  double mtbf_s() const { return mtbf_s_; }

 private:
  double mtbf_s_;
  double cost_s_ = 1;  // assumed until a save was measured
  double seconds_;
  double reported_s_ = 0;
  Clock::time_point last_;
};

// When a run saves checkpoints, in the background or not, and what a failed save means. All ranks
// decide alike.
class SavePolicy {
 public:
  SavePolicy(RunContext& run, const StepGuard& guard, EnergyAccount& energy);

  void open();  // allocates the memory for saves in the background
  void report_memory() const;
  void warn_if_waiting() const;  // if saves in the background do not fit into the memory
  bool in_background() const { return saver_ != nullptr; }
  bool under_way() const { return saver_ && saver_->under_way(); }

  // For the all-reduce of a step: whether this rank's save in the background has ended, and 1 from
  // rank 0 if it is time to save (train.checkpoint_every: auto).
  void after_step() {
    if (saver_) saver_->after_step();
  }
  double ended() const { return saver_ && saver_->ended() ? 1 : 0; }
  double asks_now() const;
  void decide(double asks) { asked_ = asks > 0; }
  void ask() { asked_ = true; }  // after this step

  bool is_due() const;
  void save();
  // Takes the result of the save in the background, if there is one; waits for its end.
  void finish();
  void finish_after_error() noexcept;
  // The weights or losses of this step are useless: names the newest healthy checkpoint.
  [[noreturn]] void end_diverged(const std::string& why);
  void report(double run_s) const;  // what saves cost in so many seconds

 private:
  struct Saved {
    std::filesystem::path model;
    double duration_s = 0;  // until it was published
    bool background = false;
  };
  bool is_last() const { return run_.stops.decided() || run_.finished(); }
  std::vector<Tokenizer::File> texts() const;
  CheckpointOptions checkpoint_options() const;
  void warn_of_waiting_saves() const;
  void note_saved(const Saved& result);
  void note_failed(RankFailure failure, bool last);

  RunContext& run_;
  const StepGuard& guard_;
  EnergyAccount& energy_;
  std::vector<Tokenizer::File> tokenizer_files_;  // copied into each checkpoint; on rank 0
  SnapshotPlan snapshot_plan_;
  std::unique_ptr<BackgroundSave> saver_;  // with train.async_save
  std::optional<SaveInterval> interval_;   // with train.checkpoint_every: auto; on rank 0
  bool asked_ = false;                     // by interval_ or ask(); the same on all ranks
  bool healthy_ = false;                   // whether the run was when the save under way began
  std::int64_t step_ = 0;                  // of the last save that began
  std::int64_t failed_ = 0;                // consecutive ones
  std::int64_t saved_ = 0;
  double stalled_s_ = 0;  // all time that the training waited for saves
  double stall_s_ = 0;    // the same of the last one
};

// Copies of the state in the memory of nodes (train.memory_copy_every): made between checkpoints,
// and read at a restart. All ranks call all functions.
class MemoryCopyPolicy {
 public:
  MemoryCopyPolicy(RunContext& run, const StepGuard& guard) : run_(run), guard_(guard) {}

  void make();                                 // once there is an engine
  bool restore(const RunStart& start);         // sets run.state; false: there is no usable copy
  bool restored() const { return restored_; }  // the run continues from a copy
  void open();
  void copy();  // if it is time to
  void give_up() {
    if (copies_) copies_->give_up();
    restored_ = false;
  }
  void remove();

 private:
  RunContext& run_;
  const StepGuard& guard_;
  std::unique_ptr<MemoryCopies> copies_;
  bool restored_ = false;
  bool reported_ = false;  // the first copy
};

}  // namespace kintsugi
