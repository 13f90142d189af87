#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "energy/energy_report.h"
#include "train/trainer/run_context.h"

namespace kintsugi {

// The energy of a run: of each step, and the report over all attempts. Does nothing in a run that
// is not metered.
class EnergyAccount {
 public:
  explicit EnergyAccount(RunContext& run) : run_(run) {}

  void meter_with(JobEnergy& energy);
  GoodputLog::Beginning beginning() const;
  void begin_steps() {
    sum();
    recorded_ = now_;
  }
  EnergyTotals own() const;                   // of this rank's node, for the all-reduce of a step
  void record_step(const EnergyTotals& now);  // in run.record
  void apply_power_policy();
  void gather();             // of all nodes, for the report; all ranks call it
  void write(bool summary);  // energy.json and emissions.csv; on rank 0

 private:
  using Clock = std::chrono::steady_clock;
  void sum();  // over all ranks, outside of steps
  void note(const EnergyTotals& now);
  EnergyReport report_now() const;
  void add_nodes(EnergyReport& report) const;
  std::string first_note() const;
  std::optional<PowerSettingEffect> setting_effect() const;
  std::vector<std::int64_t> steps_of_stages() const;

  RunContext& run_;
  EnergyTotals now_;        // of all ranks, when it was last summed
  Clock::time_point time_;  // of now_
  EnergyTotals recorded_;   // now_ at the last record of a step
  // Whether a level was metered in the last seconds.
  struct Metered {
    Clock::time_point since = {};
    double covered_s = 0;  // then
    bool now = true;
  };
  ByLevel<Metered> metered_;
  std::vector<NodeReading> readings_;  // of all nodes, for the report; on rank 0
};

}  // namespace kintsugi
