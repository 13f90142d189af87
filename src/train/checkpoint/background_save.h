#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <mutex>
#include <thread>

#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/snapshot.h"

namespace kintsugi {

// Saves a checkpoint while the training goes on: copies what this rank writes to host memory, and
// writes the copy in a thread. At most one save is under way. All ranks call the same functions for
// the same save; the threads communicate in groups that nothing else uses (write_checkpoint).
//
//   begin()        before the next step; the copies from the device start
//   before_update()  inside it, before the optimizer changes anything
//   after_step()   when its result has arrived, so the copies are done: the thread starts to write
//   ended()        once the files are published, or the save has failed
//   finish()       returns the result
class BackgroundSave {
 public:
  explicit BackgroundSave(Engine& engine);  // allocates the host memory; the engine must outlive it
  // Waits for the thread. A save before after_step() is dropped: then this rank has failed, and so
  // the job ends.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  void begin(const std::filesystem::path& checkpoints, TrainerState state,
             CheckpointOptions options);
  void before_update() { snapshot_.wait(); }
  void after_step();

  bool under_way() const { return thread_.joinable(); }
  // Throws an error of this rank alone: the others cannot end the save, and wait for this one.
  bool ended() const;
  struct Result {
    std::filesystem::path model;
    double seconds = 0;  // from begin() until it was published
  };
  // Waits for the end. Throws SharedFailure, on all ranks, if the save failed.
  Result finish();

 private:
  enum class Order { Wait, Write, Drop };
  void give(Order order);
  void work(const std::filesystem::path& checkpoints, const TrainerState& state,
            const CheckpointOptions& options);

  Engine& engine_;
  Snapshot snapshot_;
  std::mutex mutex_;
  std::condition_variable given_;
  Order order_ = Order::Wait;
  std::atomic<bool> ended_ = false;
  Result result_;             // of the thread
  std::exception_ptr error_;  // of the thread
  std::thread thread_;
};

}  // namespace kintsugi
