#include "train/startup.h"

#include <fmt/format.h>

#include <algorithm>

namespace kintsugi {

double unix_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Startup Startup::of_next_stage() const {
  Startup next;
  next.launched_s_ = launched_s_;
  next.launched_ = launched_;
  return next;
}

double Startup::now_s() const {
  return launched_s_ + std::chrono::duration<double>(Clock::now() - launched_).count();
}

void Startup::mark(std::string phase) {
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - last_).count();
  last_ = now;
  const auto known =
      std::ranges::find_if(phases_, [&](const auto& entry) { return entry.first == phase; });
  if (known != phases_.end())
    known->second += seconds;
  else
    phases_.emplace_back(std::move(phase), seconds);
}

std::string Startup::summary() const {
  double total = 0;
  std::string text;
  for (const auto& [phase, seconds] : phases_) {
    total += seconds;
    text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", phase, seconds);
  }
  return fmt::format("{:.2f} s: {}", total, text);
}

}  // namespace kintsugi
