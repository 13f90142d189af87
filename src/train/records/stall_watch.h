#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

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

}  // namespace kintsugi
