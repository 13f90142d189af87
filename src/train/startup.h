#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace kintsugi {

// The time from launch to the end of the first step, by phase.
class Startup {
 public:
  // Adds the time since the last mark to this phase.
  void mark(std::string phase);
  std::string summary() const;  // "0.86 s: init ranks 0.33, load data 0.05, …"

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_ = Clock::now();
  std::vector<std::pair<std::string, double>> phases_;  // seconds
};

}  // namespace kintsugi
