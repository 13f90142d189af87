#include "train/records/run_events.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "core/units.h"

namespace kintsugi {
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
  return std::find(config_.on.begin(), config_.on.end(), event) != config_.on.end();
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
