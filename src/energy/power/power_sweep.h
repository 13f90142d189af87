#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/progress.h"
#include "core/table.h"
#include "energy/meters/meter.h"
#include "energy/power/power_control.h"

namespace kintsugi {

struct SweepOptions {
  std::vector<double> limits_w = {};  // to try; empty with `clocks_mhz`: six over the whole range
  std::vector<int> clocks_mhz = {};
  bool as_is = false;     // change nothing
  double seconds = 10;    // of each measurement
  double settle_s = 3;    // before it: clocks and the averages of the driver need time
  double sample_s = 0.2;  // between two readings of the meters
};

// One measurement.
struct SweepPoint {
  std::optional<double> limit_w = {};  // the limit at the time; empty: unknown
  std::optional<int> clock_mhz = {};   // locked to this
  double seconds = 0, tokens_per_s = 0;
  double watts = 0;       // over the time that the meters covered
  std::string note = {};  // of the meters; empty: all is well
  double j_per_token() const { return tokens_per_s > 0 ? watts / tokens_per_s : 0; }
};

struct PowerSweep {
  std::vector<SweepPoint> points = {};
  std::string not_done = {};  // what could not be set, in one line; empty: all was done
  bool stopped = false;       // by `stop`

  const SweepPoint* optimum() const;  // the fewest joules per token; nullptr: no points
  // The fewest joules per token of those that have at least 95 % of the highest speed.
  const SweepPoint* fast_optimum() const;
};

// What is measured, and with which clock; tests use their own.
struct SweepWorkload {
  std::function<std::int64_t()> step;  // trains one step and returns its tokens
  std::function<double()> now_s;
  std::function<bool()> stop;  // asked between steps
  ProgressCall progress = {};  // settings
};

// Measures the workload at each setting of the GPUs, all meters added up, and restores the former
// settings. UserError for a setting that is not allowed, before anything is changed. If the driver
// refuses a setting, the present one is measured. Failure if a meter gives nothing.
PowerSweep sweep_power(PowerControl& control, const std::vector<Meter*>& meters,
                       const SweepOptions& options, const SweepWorkload& workload);

// One row for each point; people see the two optima marked.
Table to_table(const PowerSweep& sweep);

}  // namespace kintsugi
