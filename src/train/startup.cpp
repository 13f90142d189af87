#include "train/startup.h"

#include <fmt/format.h>

namespace kintsugi {

void Startup::mark(std::string what) {
  const auto now = Clock::now();
  parts_.emplace_back(std::move(what), std::chrono::duration<double>(now - last_).count());
  last_ = now;
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
