#pragma once

#include <memory>

#include "train/checkpoint/memory_copies.h"
#include "train/trainer/run_context.h"
#include "train/trainer/step_guard.h"

namespace kintsugi {

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
