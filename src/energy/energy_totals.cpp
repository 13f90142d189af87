#include "energy/energy_totals.h"

namespace kintsugi {

void append_values(const EnergyTotals& totals, std::vector<double>& values) {
  for (const LevelEnergy& one : totals.values)
    values.insert(values.end(),
                  {one.total_j, one.steps_j, one.checkpoint_j, one.validation_j, one.covered_s});
}

std::optional<EnergyLevel> standing_level(const ByLevel<double>& coverage) {
  for (const EnergyLevel level : {EnergyLevel::Node, EnergyLevel::Gpu, EnergyLevel::Cpu})
    if (coverage[level] >= kLeastCoverage) return level;
  return {};
}

EnergyTotals energy_totals_of(std::span<const double> values) {
  EnergyTotals totals;
  std::size_t i = 0;
  for (LevelEnergy& one : totals.values)
    for (double* value :
         {&one.total_j, &one.steps_j, &one.checkpoint_j, &one.validation_j, &one.covered_s})
      *value = values[i++];
  return totals;
}

}  // namespace kintsugi
