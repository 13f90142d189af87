#pragma once

#include <array>
#include <span>

#include "energy/energy_totals.h"

namespace kintsugi {

// Joules and metered time of one level.
struct LevelAmount {
  double joules = 0, covered_s = 0;
};

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
