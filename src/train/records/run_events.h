#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "train/config/config.h"
#include "train/records/notifier.h"
#include "train/records/run_files.h"

namespace kintsugi {

// Decides whether a run has stalled. Times are of any steady clock.
class StallDetector {
 public:
  // Without a limit: the larger of 5 min and 20 times the median step; 30 min before the first
  // step, which may prepare kernels.
  StallDetector(std::optional<double> limit_s, double now_s) : given_s_(limit_s), last_s_(now_s) {}

  void note_step(double now_s, double step_s);
  // A sign of life that is not the end of a step: a micro-batch of a validation, a request of a
  // task, bytes of a checkpoint.
  void note_activity(double now_s);
  // Work that has few or no signs of life, such as reading and writing checkpoints: meanwhile the
  // limit is at least 30 min. Such work may be nested.
  void begin_long_work(double now_s);
  void end_long_work(double now_s);
  double limit_s() const;
  // The time since the last sign of life if that is above the limit; once for each stall.
  std::optional<double> stalled_s(double now_s);

 private:
  double usual_limit_s() const;

  std::optional<double> given_s_;
  double last_s_;
  bool reported_ = false;
  int long_work_ = 0;         // how much of it is under way
  std::deque<double> steps_;  // seconds of the last steps
};

// A thread that calls `report` when a run has stalled. Thread-safe.
class StallWatch {
 public:
  using Report = std::function<void(double seconds)>;
  StallWatch(std::optional<double> limit_s, Report report);
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

  void note_step(double step_s);
  void note_activity();
  void begin_long_work();
  void end_long_work();

 private:
  void watch();

  Report report_;
  std::mutex mutex_;  // guards the two below
  StallDetector detector_;
  bool ended_ = false;
  std::condition_variable changed_;
  std::thread thread_;
};

// What happens in a run: each event is a line of events.jsonl, and those of run.notify.on are sent
// to whoever wants to be told. Only rank 0 has one. Thread-safe; nothing throws.
class RunEvents {
 public:
  // `files` must outlive it. `now_s`: seconds since 1970.
  RunEvents(RunFiles& files, const std::filesystem::path& directory, const NotifyConfig& config,
            std::function<double()> now_s);

  // "resumed", "checkpoint" or "spike".
  void add(std::string_view event, std::int64_t step, const std::string& message) noexcept;
  // "finished", "stopped", "diverged" or "failed". Only the first one counts. Returns at once; it
  // is delivered in another thread.
  void end(std::string_view event, std::int64_t step, const std::string& message) noexcept;
  // Waits until the last event was delivered or its time was over. The destructor does that too.
  void wait_for_delivery() noexcept { notifier_.finish(); }
  // A function that waits for it without a limit, also when this object is gone.
  std::function<void()> delivery() const { return notifier_.waiter(); }

  // Signs of life. Before the first of them nothing can stall.
  void begin_steps() noexcept;
  void note_step(std::int64_t step, double seconds) noexcept;
  void note_activity() noexcept;  // not a step, but the run is alive
  // StallDetector::begin_long_work() while it exists. nullptr: on a rank without events.
  class LongWork {
   public:
    explicit LongWork(RunEvents* events);
    ~LongWork();
    LongWork(const LongWork&) = delete;
    LongWork& operator=(const LongWork&) = delete;

   private:
    StallWatch* watch_ = nullptr;
  };

 private:
  bool is_sent(std::string_view event) const;
  // Writes the line of events.jsonl and returns what is sent.
  Notification record(std::string_view event, std::int64_t step, const std::string& message);
  void report_stall(double seconds);

  RunFiles& files_;
  std::string run_;
  NotifyConfig config_;
  std::function<double()> now_s_;
  std::atomic<bool> ended_ = false;
  std::atomic<std::int64_t> step_ = 0;
  Notifier notifier_;
  std::optional<StallWatch> stall_watch_;  // last: its thread uses the others
};

}  // namespace kintsugi
