#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "energy/meters/meter.h"

namespace kintsugi {

// What a rank does while it uses energy.
enum class RunPhase : std::uint8_t { Other, Steps, Checkpoint, Validation };

// The energy of one level since the launch, of one node or as a sum over nodes. All values only
// grow.
struct LevelEnergy {
  double total_j = 0;
  double steps_j = 0, checkpoint_j = 0, validation_j = 0;  // parts of total_j
  double covered_s = 0;                                    // metered time; sums count node-seconds
  bool operator==(const LevelEnergy&) const = default;
};
inline LevelEnergy& operator+=(LevelEnergy& a, const LevelEnergy& b) {
  a.total_j += b.total_j;
  a.steps_j += b.steps_j;
  a.checkpoint_j += b.checkpoint_j;
  a.validation_j += b.validation_j;
  a.covered_s += b.covered_s;
  return a;
}

using EnergyTotals = ByLevel<LevelEnergy>;

// What a level has used, and the time in which that was metered.
struct LevelAmount {
  double joules = 0, covered_s = 0;
  bool operator==(const LevelAmount&) const = default;
};

// How a level is metered in one attempt.
struct LevelMeter {
  std::string source = {};  // "nvml"; several: "nvml, amdsmi"; empty: not metered
  MeterKind kind = MeterKind::Counter;
  std::int64_t nodes = 0;  // that meter it
  bool operator==(const LevelMeter&) const = default;
};

// The level that stands for a run: the whole nodes if at least half of their time is metered
// (`coverage`, 0 to 1), otherwise the GPUs, otherwise the processors.
std::optional<EnergyLevel> standing_level(const ByLevel<double>& coverage);
inline constexpr double kLeastCoverage = 0.5;

// All values, for a sum over ranks.
void append_values(const EnergyTotals& totals, std::vector<double>& values);
EnergyTotals energy_totals_of(std::span<const double> values);

// The last reading of the meters of a level, and how it goes on from there. Times are in seconds of
// one steady clock.
struct LevelSample {
  double time_s = 0;
  LevelAmount amount = {};      // since the launch
  LevelAmount per_second = {};  // expected after it
  double until_s = 0;           // for so long

  LevelAmount at(double now_s) const;
};

// Charges the energy of one level to the phases of a run.
//
// Power differs between phases: steps need more than waiting for a disk. Until the next reading the
// last power is only an expectation. The joules between two readings are divided among the phases
// of exactly that time, by their seconds: what a reading corrects is never charged to a phase that
// came later. Meters are therefore read when a phase ends (NodeSampler::sample_soon).
class PhaseCharges {
 public:
  // The rank was in `phase` since the last call, until `now_s`. `readings`: all since then, in
  // their order.
  void advance(RunPhase phase, double now_s, std::span<const LevelSample> readings);
  // Up to the last call: readings, and the expectation since. No value ever decreases.
  const LevelEnergy& energy() const { return energy_; }

 private:
  static constexpr std::size_t kPhases = 4;  // of RunPhase
  using ByPhase = std::array<double, kPhases>;

  void settle(RunPhase phase, double now_s, const LevelSample& reading);
  static void divide(double joules, const ByPhase& seconds, RunPhase otherwise, ByPhase& charged);
  void report(const ByPhase& joules, double covered_s);

  LevelSample sample_;
  double last_s_ = 0;
  bool begun_ = false;
  ByPhase open_s_ = {};     // time in each phase since sample_
  ByPhase charged_j_ = {};  // up to sample_
  LevelEnergy energy_;
};

}  // namespace kintsugi
