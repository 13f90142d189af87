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
  // A validation, a checkpoint or the like began or ended.
  void note_activity(double now_s);
  double limit_s() const;
  // The time since the last sign of life if that is above the limit; once for each stall.
  std::optional<double> stalled_s(double now_s);

 private:
  std::optional<double> given_s_;
  double last_s_;
  bool reported_ = false;
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
