#include "core/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/log.h"
#include "core/units.h"

namespace kintsugi {
namespace {

constexpr double kLiveInterval_s = 0.2, kLogInterval_s = 30;

double interval_s(const ProgressOutput& output) {
  return output.live ? kLiveInterval_s : kLogInterval_s;
}

}  // namespace

ProgressOutput terminal_progress() {
  const bool live = terminal_is_live();
  return {.live = live,
          .now_s =
              [] {
                return std::chrono::duration<double>(
                           std::chrono::steady_clock::now().time_since_epoch())
                    .count();
              },
          .show =
              [live](const std::string& line) {
                if (live)
                  show_live_line(line);
                else
                  log_note("{}", line);
              }};
}

Progress::Progress(std::string what, std::int64_t total, std::string unit, ProgressOutput output)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      output_(std::move(output)),
      start_s_(output_.now_s()),
      total_(total),
      next_s_(start_s_ + interval_s(output_)) {}

Progress::~Progress() {
  if (output_.live && shown_) output_.show("");
}

void Progress::add(std::int64_t more) {
  done_.fetch_add(more, std::memory_order_relaxed);
  show_if_due();
}

void Progress::set(std::int64_t done) {
  done_.store(done, std::memory_order_relaxed);
  show_if_due();
}

void Progress::set(std::int64_t done, std::int64_t total) {
  total_.store(total, std::memory_order_relaxed);
  set(done);
}

void Progress::start_at(std::int64_t done) {
  done_.store(done, std::memory_order_relaxed);
  before_.store(done, std::memory_order_relaxed);
}

void Progress::set_note(std::function<std::string()> note) {
  const std::lock_guard lock(mutex_);
  note_ = std::move(note);
}

// A thread that finds another one at it goes on with its work.
void Progress::show_if_due() {
  const double now_s = output_.now_s();
  if (now_s < next_s_.load(std::memory_order_relaxed)) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || now_s < next_s_.load(std::memory_order_relaxed)) return;
  next_s_.store(now_s + interval_s(output_), std::memory_order_relaxed);
  output_.show(line(now_s));
  shown_ = true;
}

std::string Progress::amount(double value) const {
  return unit_ == "bytes" ? format_bytes(value) : format_count(value);
}

std::string Progress::line(double now_s) const {
  const auto done = static_cast<double>(done_.load(std::memory_order_relaxed)),
             before = static_cast<double>(before_.load(std::memory_order_relaxed)),
             total = static_cast<double>(total_.load(std::memory_order_relaxed));
  const double rate = (done - before) / std::max(now_s - start_s_, 1e-9);
  const std::string suffix = unit_ == "bytes" ? "" : " " + unit_;
  std::string text = what_;
  if (total > 0)
    text += fmt::format("  {:.0f} %  {} of {}{}", 100 * std::clamp(done / total, 0.0, 1.0),
                        amount(std::min(done, total)), amount(total), suffix);
  else
    text += fmt::format("  {}{}", amount(done), suffix);
  text += fmt::format("  {}{}/s", amount(rate), suffix);
  if (total > 0 && rate > 0)
    text += fmt::format("  ETA {}", format_duration(std::max(total - done, 0.0) / rate));
  if (note_) text += "  " + note_();
  return text;
}

}  // namespace kintsugi
