#include "train/records/stall_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace kintsugi {
namespace {

constexpr double kShortestLimit_s = 300, kLongWorkLimit_s = 1800, kMedianSteps = 20;
constexpr std::size_t kRememberedSteps = 101;
constexpr double kLongestSleep_s = 5, kShortestSleep_s = 0.01;

double steady_now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void StallDetector::note_step(double now_s, double step_s) {
  note_activity(now_s);
  steps_.push_back(step_s);
  if (steps_.size() > kRememberedSteps) steps_.pop_front();
}

void StallDetector::note_activity(double now_s) {
  last_s_ = now_s;
  reported_ = false;
}

void StallDetector::begin_long_work(double now_s) {
  note_activity(now_s);
  ++long_work_;
}

void StallDetector::end_long_work(double now_s) {
  note_activity(now_s);
  --long_work_;
}

double StallDetector::limit_s() const {
  return long_work_ > 0 ? std::max(usual_limit_s(), kLongWorkLimit_s) : usual_limit_s();
}

double StallDetector::usual_limit_s() const {
  if (given_s_) return *given_s_;
  if (steps_.empty()) return kLongWorkLimit_s;
  std::vector<double> sorted(steps_.begin(), steps_.end());
  const auto middle = sorted.begin() + std::ssize(sorted) / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  return std::max(kShortestLimit_s, kMedianSteps * *middle);
}

std::optional<double> StallDetector::stalled_s(double now_s) {
  const double silent_s = now_s - last_s_;
  if (reported_ || silent_s <= limit_s()) return {};
  reported_ = true;
  return silent_s;
}

StallWatch::StallWatch(std::optional<double> limit_s, Report report)
    : report_(std::move(report)),
      detector_(limit_s, steady_now_s()),
      thread_([this] { watch(); }) {}

StallWatch::~StallWatch() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StallWatch::note_step(double step_s) {
  const std::lock_guard lock(mutex_);
  detector_.note_step(steady_now_s(), step_s);
}

void StallWatch::note_activity() {
  const std::lock_guard lock(mutex_);
  detector_.note_activity(steady_now_s());
}

void StallWatch::begin_long_work() {
  const std::lock_guard lock(mutex_);
  detector_.begin_long_work(steady_now_s());
}

void StallWatch::end_long_work() {
  const std::lock_guard lock(mutex_);
  detector_.end_long_work(steady_now_s());
}

void StallWatch::watch() {
  std::unique_lock lock(mutex_);
  while (!ended_) {
    const double sleep_s = std::clamp(detector_.limit_s() / 4, kShortestSleep_s, kLongestSleep_s);
    changed_.wait_for(lock, std::chrono::duration<double>(sleep_s));
    if (ended_) return;
    const std::optional<double> seconds = detector_.stalled_s(steady_now_s());
    if (!seconds) continue;
    lock.unlock();  // a report may take its time
    report_(*seconds);
    lock.lock();
  }
}

}  // namespace kintsugi
