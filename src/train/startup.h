#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace kintsugi {

double unix_time_s();  // now, in seconds since 1970

// The time from launch to the end of the first step, by phase.
class Startup {
 public:
  // Adds the time since the last mark to this phase.
  void mark(std::string phase);
  std::string summary() const;  // "0.86 s: init ranks 0.33, load data 0.05, …"
  // When the program was launched, in seconds since 1970.
  double launched_s() const { return launched_s_; }
  // Now, on that scale, by the steady clock.
  double now_s() const;
  // For the next stage: phases start again, the launch is the same.
  Startup of_next_stage() const;

 private:
  using Clock = std::chrono::steady_clock;
  double launched_s_ = unix_time_s();
  Clock::time_point launched_ = Clock::now();
  Clock::time_point last_ = launched_;
  std::vector<std::pair<std::string, double>> phases_;  // seconds
};

}  // namespace kintsugi
