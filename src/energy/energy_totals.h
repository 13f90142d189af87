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

// Indexed by EnergyLevel.
template <class T>
struct ByLevel {
  std::array<T, kEnergyLevels.size()> values = {};

  T& operator[](EnergyLevel level) { return values[static_cast<std::size_t>(level)]; }
  const T& operator[](EnergyLevel level) const { return values[static_cast<std::size_t>(level)]; }
  bool operator==(const ByLevel&) const = default;
};
using EnergyTotals = ByLevel<LevelEnergy>;

// What a level has used, and the time in which that was metered.
struct SpentEnergy {
  double joules = 0, covered_s = 0;
  bool operator==(const SpentEnergy&) const = default;
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

}  // namespace kintsugi
