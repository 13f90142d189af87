#include "report/energy_ledger.h"

#include <algorithm>

namespace kintsugi {
namespace {

// The amount of one phase: seconds, or joules of one level.
double amount_in(EnergyPhase phase, const GoodputAmounts& all) {
  switch (phase) {
    case EnergyPhase::Compute:
      return all.productive - all.exposed;
    case EnergyPhase::Communication:
      return all.exposed;
    case EnergyPhase::Checkpoint:
      return all.checkpoint;
    case EnergyPhase::Validation:
      return all.validation;
    case EnergyPhase::Startup:
      return all.startup;
    case EnergyPhase::Other:
      return all.other;
    case EnergyPhase::Lost:
      return all.recomputed;
  }
  return 0;
}

// Without the time before the launch.
double seconds_of(const Attempt& attempt) {
  return attempt.seconds.total() - attempt.seconds.waiting - attempt.seconds.down;
}

AttemptEnergy energy_of(const Attempt& attempt) {
  AttemptEnergy energy{.first_step = attempt.first_step,
                       .last_step = attempt.last_step,
                       .seconds = seconds_of(attempt),
                       .state = attempt.state};
  for (const EnergyLevel level : kEnergyLevels) {
    if (attempt.covered_s[level] <= 0) continue;
    energy.joules[level] = attempt.joules[level].total();
    energy.lost[level] = attempt.joules[level].recomputed;
  }
  return energy;
}

// The source of a level over several attempts: all sources, and the least reliable kind.
void add_meter(const LevelMeter& meter, LevelSource& source) {
  if (source.source.empty()) {
    source.source = meter.source;
    source.kind = meter.kind;
  } else if (source.source.find(meter.source) == std::string::npos) {
    source.source += ", " + meter.source;
  }
  source.kind = std::max(source.kind, meter.kind);
  source.nodes = meter.nodes;
}

}  // namespace

void add_ledger(const Goodput& goodput, EnergyReport& report) {
  report.steps = goodput.trained_steps();
  report.tokens = static_cast<double>(goodput.trained_tokens());
  for (const Attempt& attempt : goodput.attempts()) {
    report.attempts.push_back(energy_of(attempt));
    report.seconds += seconds_of(attempt);
    report.node_seconds += seconds_of(attempt) * static_cast<double>(attempt.nodes);
    for (const EnergyLevel level : kEnergyLevels) {
      report.source(level).covered_s += attempt.covered_s[level];
      if (attempt.covered_s[level] > 0) add_meter(attempt.meters[level], report.source(level));
    }
  }
  const GoodputAmounts seconds = goodput.seconds();
  for (const EnergyPhase phase : kEnergyPhases) {
    report.phase(phase).seconds += amount_in(phase, seconds);
    for (const EnergyLevel level : kEnergyLevels)
      if (report.source(level).covered_s > 0)
        report.phase(phase).joules[level] = amount_in(phase, goodput.joules(level));
  }
}

}  // namespace kintsugi
