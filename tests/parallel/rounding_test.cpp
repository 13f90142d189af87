// Measured tolerances must still detect an error.
#include "support/rounding.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kintsugi {
namespace {

const Outcome kExact{.losses = {3, 2.9, 2.8}, .norms = {4, 3, 2}, .weights = {}};

Outcome scaled(double losses, double norms) {
  Outcome outcome = kExact;
  for (double& loss : outcome.losses) loss *= 1 + losses;
  for (double& norm : outcome.norms) norm *= 1 + norms;
  return outcome;
}

TEST(Rounding, AllowsAFewTimesWhatOneProcessShows) {
  Rounding rounding(kExact);
  rounding.add(scaled(1e-7, 1e-6));
  rounding.add(scaled(-2e-7, 3e-6));
  const Outcome expected = scaled(1e-7, 1e-6);
  EXPECT_EQ(rounding.complaint(expected, expected), "");
  EXPECT_EQ(rounding.complaint(scaled(-5e-7, 1e-5), expected), "");
  EXPECT_EQ(rounding.complaint(scaled(1e-7, 1.5e-5), expected).find("norms differ by"), 0u);
  EXPECT_EQ(rounding.complaint(scaled(2e-6, 1e-6), expected).find("losses differ by"), 0u);
}

TEST(Rounding, OfExactRunsAllowsRoundingsOfTheResultAlone) {
  Rounding rounding(kExact);
  rounding.add(kExact);
  EXPECT_EQ(rounding.complaint(scaled(1e-7, 4e-7), kExact), "");
  EXPECT_NE(rounding.complaint(scaled(1e-6, 0), kExact), "");
  EXPECT_NE(rounding.complaint(scaled(0, 1e-6), kExact), "");
}

// A step may agree by chance; the tolerance never decreases from step to step.
TEST(Rounding, GrowsFromStepToStep) {
  Rounding rounding(kExact);
  Outcome off = kExact;
  off.losses[1] += 1e-5;
  rounding.add(off);
  EXPECT_LT(rounding.loss_tolerance(0), 1e-6);
  EXPECT_GT(rounding.loss_tolerance(1), 1e-5);
  EXPECT_EQ(rounding.loss_tolerance(1), rounding.loss_tolerance(2));
}

TEST(Rounding, SeesWhatIsNoNumber) {
  Rounding rounding(kExact);
  rounding.add(scaled(1e-3, 1e-3));
  EXPECT_NE(rounding.complaint(scaled(NAN, 0), kExact), "");
  EXPECT_NE(rounding.complaint(scaled(0, INFINITY), kExact), "");
}

}  // namespace
}  // namespace kintsugi
