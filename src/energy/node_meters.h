#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "energy/energy_totals.h"
#include "energy/meters/find_meters.h"
#include "energy/meters/meter.h"

namespace kintsugi {

// A meter in use and what it has measured so far.
struct MeterState {
  MeterIdentity identity = {};
  double joules = 0, covered_s = 0;
  // The integral of the power readings of a counter that gives both, over the same time as
  // counter_j. It checks the counter; 0: there are none.
  double power_j = 0, counter_j = 0;
  std::string note = {};
};

// The meters of this node that supply its energy levels. Times are of one steady clock, in seconds.
class NodeMeters {
 public:
  // `used`: for each level, the meters (indices in `found.meters`) whose sum is its energy.
  NodeMeters(FoundMeters found, ByLevel<std::vector<std::size_t>> used);

  // Reads all meters; a failure is noted. `now_s` is asked after each reading.
  void sample(const std::function<double()>& now_s);
  bool metered(EnergyLevel level) const { return !used_[level].empty(); }
  // Since the first sample, up to now: after the last fresh reading at its power, for at most
  // `longest_s` or two updates of the meter. If one of several meters of a level fails, less time
  // is covered.
  ByLevel<LevelAmount> amounts(double now_s, double longest_s) const;
  std::vector<MeterState> states() const;

 private:
  struct One {
    std::unique_ptr<Meter> meter;
    MeterTotal total;
    // The check of a counter: the last reading, and the power since the counter last moved.
    std::optional<double> last_w = {};
    double last_s = 0, open_j = 0;
    std::optional<double> moved_s = {};
    bool unknown = true;  // the power, at some time since then
    double power_j = 0, counter_j = 0;
  };
  static void check_by_power(One& one, const MeterReading& reading, double now_s, double joules);

  std::vector<One> meters_;
  ByLevel<std::vector<std::size_t>> used_;  // indices in meters_
};

// The same meters, one object for each source.
std::vector<std::unique_ptr<NodeMeters>> meters_by_source(
    FoundMeters found, const ByLevel<std::vector<std::size_t>>& used);

// Samples each of several NodeMeters in a thread of its own, so that a source that is slow does not
// delay the others. A thread is left behind if a meter never answers.
class NodeSampler {
 public:
  NodeSampler(std::vector<std::unique_ptr<NodeMeters>> sources, double interval_s);
  ~NodeSampler();
  NodeSampler(const NodeSampler&) = delete;
  NodeSampler& operator=(const NodeSampler&) = delete;

  bool metered(EnergyLevel level) const;
  // Joules and metered time of each level since the construction, up to now. Never decreases and
  // never waits for a meter.
  ByLevel<LevelAmount> now();
  // The readings of each level since the last call, and the time of asking. Never waits for a meter
  // either.
  struct Look {
    double now_s = 0;
    ByLevel<std::vector<LevelSample>> levels = {};
  };
  Look look();
  // Reads the meters now, unless they have just been read. Does not wait for it.
  void sample_soon();
  std::vector<MeterState> states() const;

 private:
  struct Source;
  std::vector<std::shared_ptr<Source>> sources_;
  ByLevel<LevelAmount> reported_;
};

}  // namespace kintsugi
