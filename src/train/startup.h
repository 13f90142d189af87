#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace kintsugi {

// Where the time between the launch and the first step went.
class Startup {
 public:
  // What has passed since the last mark was spent on this; it may be so several times.
  void mark(std::string what);
  std::string summary() const;  // "1.93 s: joining the ranks 0.81, configuration 0.02, …"

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_ = Clock::now();
  std::vector<std::pair<std::string, double>> parts_;  // seconds
};

}  // namespace kintsugi
