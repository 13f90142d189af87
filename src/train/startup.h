#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "energy/facility.h"

namespace kintsugi {

double unix_time_s();  // now, in seconds since 1970

// The time from launch to the end of the first step, by phase, and what the launch knows about the
// energy of the run.
class Startup {
 public:
  // Adds the time since the last mark to this phase.
  void mark(std::string phase);
  std::string summary() const;  // "0.86 s: init ranks 0.33, load data 0.05, …"
  // When the program was launched, in seconds since 1970.
  double launched_s() const { return launched_s_; }
  // Now, on that scale, by the steady clock.
  double now_s() const;
  // For the next stage: phases start again, the rest is the same.
  Startup of_next_stage() const;

  // Rank 0 only.
  void set_energy(EnergyContext energy) { energy_ = std::move(energy); }
  const EnergyContext& energy() const { return energy_; }

 private:
  using Clock = std::chrono::steady_clock;
  double launched_s_ = unix_time_s();
  Clock::time_point launched_ = Clock::now();
  Clock::time_point last_ = launched_;
  std::vector<std::pair<std::string, double>> phases_;  // seconds
  EnergyContext energy_;
};

}  // namespace kintsugi
