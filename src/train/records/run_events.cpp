#include "train/records/run_events.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/log.h"
#include "core/units.h"

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

namespace {

constexpr std::size_t kLongestMessage = 4096;  // an environment variable has a limit

std::string whole_path(const std::filesystem::path& path) {
  std::error_code unknown;
  const std::filesystem::path whole = std::filesystem::absolute(path, unknown);
  return (unknown ? path : whole).lexically_normal().string();
}

NotifierOptions notifier_options(const NotifyConfig& config, const std::string& run) {
  return {
      .command = config.command.value_or(""), .webhook = config.webhook.value_or(""), .run = run};
}

}  // namespace

RunEvents::RunEvents(RunFiles& files, const std::filesystem::path& directory,
                     const NotifyConfig& config, std::function<double()> now_s)
    : files_(files),
      run_(whole_path(directory)),
      config_(config),
      now_s_(std::move(now_s)),
      notifier_(notifier_options(config, run_)) {}

bool RunEvents::is_sent(std::string_view event) const {
  return std::ranges::find(config_.on, event) != config_.on.end();
}

Notification RunEvents::record(std::string_view event, std::int64_t step,
                               const std::string& message) {
  using EventJson = nlohmann::ordered_json;
  const auto to_text = [](const EventJson& json) {
    return json.dump(-1, ' ', false, EventJson::error_handler_t::replace);
  };
  const std::string text = message.substr(0, kLongestMessage);
  EventJson json = {
      {"time_s", now_s_()}, {"event", std::string(event)}, {"step", step}, {"message", text}};
  files_.add_event(to_text(json) + "\n");
  json["run"] = run_;
  return {std::string(event), text, to_text(json)};
}

void RunEvents::add(std::string_view event, std::int64_t step,
                    const std::string& message) noexcept {
  try {
    Notification one = record(event, step, message);
    if (is_sent(event)) notifier_.send(std::move(one));
  } catch (...) {  // no memory for it
  }
}

void RunEvents::end(std::string_view event, std::int64_t step,
                    const std::string& message) noexcept {
  if (ended_.exchange(true)) return;
  try {
    Notification one = record(event, step, message);
    if (is_sent(event)) notifier_.send_last(std::move(one));
  } catch (...) {
  }
}

void RunEvents::begin_steps() noexcept {
  try {
    const auto& after = config_.stalled_after;
    stall_watch_.emplace(after ? std::optional(after->seconds) : std::nullopt,
                         [this](double seconds) { report_stall(seconds); });
  } catch (const std::exception& error) {
    log_warning("run.notify: a run that stalls is not noticed: {}", error.what());
  }
}

void RunEvents::note_step(std::int64_t step, double seconds) noexcept {
  step_ = step;
  if (stall_watch_) stall_watch_->note_step(seconds);
}

void RunEvents::note_activity() noexcept {
  if (stall_watch_) stall_watch_->note_activity();
}

RunEvents::LongWork::LongWork(RunEvents* events) {
  if (events != nullptr && events->stall_watch_) watch_ = &*events->stall_watch_;
  if (watch_ != nullptr) watch_->begin_long_work();
}

RunEvents::LongWork::~LongWork() {
  if (watch_ != nullptr) watch_->end_long_work();
}

void RunEvents::report_stall(double seconds) {
  if (ended_) return;
  const std::string message = fmt::format("no step has ended for {}; the last one was step {}",
                                          format_duration(seconds), step_.load());
  log_warning("{}", message);
  add("stalled", step_, message);
}

}  // namespace kintsugi
