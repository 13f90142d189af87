#include "energy/energy_totals.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kintsugi {
namespace {

std::size_t index_of(RunPhase phase) { return static_cast<std::size_t>(phase); }

void raise(double& value, double to) { value = std::max(value, to); }

}  // namespace

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

LevelAmount LevelSample::at(double now_s) const {
  const double expected_s = std::clamp(now_s, time_s, std::max(time_s, until_s)) - time_s;
  return {amount.joules + expected_s * per_second.joules,
          amount.covered_s + expected_s * per_second.covered_s};
}

// Without any time everything belongs to the phase `otherwise`.
void PhaseCharges::divide(double joules, const ByPhase& seconds, RunPhase otherwise,
                          ByPhase& charged) {
  const double all_s = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  if (!(all_s > 0)) {
    charged[index_of(otherwise)] += joules;
    return;
  }
  for (std::size_t i = 0; i < kPhases; ++i) charged[i] += joules * seconds[i] / all_s;
}

// Charges what was used until a reading.
void PhaseCharges::settle(RunPhase phase, double now_s, const LevelSample& reading) {
  if (reading.time_s <= sample_.time_s) return;
  const double at_s = std::clamp(reading.time_s, last_s_, std::max(last_s_, now_s));
  open_s_[index_of(phase)] += at_s - last_s_;
  last_s_ = at_s;
  // A reading below the one before is a correction of it: the next ones make up for it.
  const double joules = std::max(reading.amount.joules, sample_.amount.joules);
  divide(joules - sample_.amount.joules, open_s_, phase, charged_j_);
  open_s_ = {};
  sample_ = reading;
  sample_.amount.joules = joules;
}

void PhaseCharges::advance(RunPhase phase, double now_s, std::span<const LevelSample> readings) {
  if (!std::exchange(begun_, true)) last_s_ = now_s;
  for (const LevelSample& reading : readings) settle(phase, now_s, reading);
  open_s_[index_of(phase)] += std::max(0.0, now_s - last_s_);
  last_s_ = std::max(last_s_, now_s);
  const LevelAmount now = sample_.at(now_s);
  ByPhase joules = charged_j_;
  divide(now.joules - sample_.amount.joules, open_s_, phase, joules);
  report(joules, now.covered_s);
}

void PhaseCharges::report(const ByPhase& joules, double covered_s) {
  raise(energy_.steps_j, joules[index_of(RunPhase::Steps)]);
  raise(energy_.checkpoint_j, joules[index_of(RunPhase::Checkpoint)]);
  raise(energy_.validation_j, joules[index_of(RunPhase::Validation)]);
  raise(energy_.total_j, std::accumulate(joules.begin(), joules.end(), 0.0));
  raise(energy_.covered_s, covered_s);
}

}  // namespace kintsugi
