// How the joules of a meter that is read now and then are divided among the phases of a run.
#include "energy/phase_charges.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kintsugi {
namespace {

// A rank that goes from phase to phase on a made-up clock, with a meter that is read every
// `sample_s` seconds and whose counter is exact.
class PhaseClock {
 public:
  explicit PhaseClock(double sample_s) : sample_s_(sample_s) {
    charged_.advance(RunPhase::Other, 0, last_);
  }
  // Spends time in a phase at this power.
  void spend(RunPhase phase, double seconds, double watts) {
    const double end_s = now_s_ + seconds;
    for (double next_s = last_.time_s + sample_s_; next_s <= end_s; next_s += sample_s_) {
      use(next_s, watts);
      last_ = {.time_s = next_s,
               .amount = {joules_, next_s},
               .per_second = {(joules_ - last_.amount.joules) / sample_s_, 1},
               .until_s = next_s + sample_s_ + 0.1};
    }
    use(end_s, watts);
    charged_.advance(phase, now_s_, last_);
    const LevelEnergy& now = charged_.energy();
    EXPECT_GE(now.steps_j, before_.steps_j);
    EXPECT_GE(now.total_j, before_.total_j);
    before_ = now;
  }
  LevelEnergy energy() const { return charged_.energy(); }
  double joules() const { return joules_; }

 private:
  void use(double until_s, double watts) {
    joules_ += (until_s - now_s_) * watts;
    now_s_ = until_s;
  }
  double sample_s_, now_s_ = 0, joules_ = 0;
  LevelSample last_;
  PhaseCharges charged_;
  LevelEnergy before_;
};

TEST(PhaseCharges, ChargesConstantPowerByTime) {
  PhaseClock clock(0.5);
  for (int i = 0; i < 100; ++i) {
    clock.spend(RunPhase::Steps, 0.13, 500);
    clock.spend(RunPhase::Other, 0.01, 500);
    if (i % 10 == 9) clock.spend(RunPhase::Checkpoint, 0.2, 500);
  }
  // The first interval has no power to go on with until it is read; then all of it is known.
  EXPECT_NEAR(clock.energy().steps_j, 500 * 13, 0.01 * 500 * 13);
  EXPECT_NEAR(clock.energy().checkpoint_j, 500 * 2, 0.02 * 500 * 2);
  EXPECT_NEAR(clock.energy().total_j, clock.joules(), 0.01 * clock.joules());
}

// A save in the background makes the loop wait for the disk, at a third of the power. If the power
// of the last reading were charged until the next one corrects it, the wait would be charged as if
// it computed, and the steps after it would get nothing.
TEST(PhaseCharges, ACorrectionIsNotTakenFromThePhasesAfterIt) {
  PhaseClock clock(0.5);
  double steps_j = 0, waited_j = 0;
  for (int i = 0; i < 200; ++i) {
    for (int k = 0; k < 6; ++k) clock.spend(RunPhase::Steps, 0.25, 600);
    clock.spend(RunPhase::Other, 0.5, 200);
    steps_j += 6 * 0.25 * 600;
    waited_j += 0.5 * 200;
  }
  const LevelEnergy energy = clock.energy();
  EXPECT_NEAR(energy.total_j, steps_j + waited_j, 0.01 * steps_j);
  EXPECT_NEAR(energy.steps_j, steps_j, 0.02 * steps_j);
}

TEST(PhaseCharges, AMeterThatIsReadLateChargesThePhasesOfThatTime) {
  PhaseCharges charged;
  const LevelSample first{.time_s = 0, .amount = {0, 0}, .per_second = {100, 1}, .until_s = 0.5};
  charged.advance(RunPhase::Other, 0, first);
  charged.advance(RunPhase::Steps, 3, first);  // no reading since
  EXPECT_DOUBLE_EQ(charged.energy().steps_j, 50) << "the expectation ends";
  charged.advance(RunPhase::Other, 4, first);
  // The reading at 4 s arrives while the rank does something else.
  const LevelSample late{.time_s = 4, .amount = {400, 4}, .per_second = {100, 1}, .until_s = 4.5};
  charged.advance(RunPhase::Validation, 4.25, late);
  EXPECT_DOUBLE_EQ(charged.energy().steps_j, 300);
  EXPECT_DOUBLE_EQ(charged.energy().validation_j, 25);
  EXPECT_DOUBLE_EQ(charged.energy().total_j, 425);
  EXPECT_DOUBLE_EQ(charged.energy().covered_s, 4.25);
}

}  // namespace
}  // namespace kintsugi
