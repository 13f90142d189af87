#include "train/startup.h"

#include <fmt/format.h>

#include <algorithm>

namespace kintsugi {

void Startup::mark(std::string what) {
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - last_).count();
  last_ = now;
  const auto known = std::find_if(parts_.begin(), parts_.end(),
                                  [&](const auto& part) { return part.first == what; });
  if (known != parts_.end())
    known->second += seconds;
  else
    parts_.emplace_back(std::move(what), seconds);
}

std::string Startup::summary() const {
  double total = 0;
  std::string text;
  for (const auto& [what, seconds] : parts_) {
    total += seconds;
    text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", what, seconds);
  }
  return fmt::format("{:.2f} s: {}", total, text);
}

}  // namespace kintsugi
