#include "optim/skip_step.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kintsugi {
namespace {

TEST(OutlierHistoryTest, LimitsAreMeanPlusDeviations) {
  OutlierHistory history({.deviations = 3, .window = 4});
  history.add(1, 10);
  EXPECT_FALSE(history.limits().any()) << "half of the window is not filled";
  history.add(3, 10);
  // Losses 1 and 3: mean 2, standard deviation sqrt((1 + 1) / 1).
  EXPECT_DOUBLE_EQ(history.limits().loss, 2 + 3 * std::sqrt(2.0) + 2e-6);
  EXPECT_DOUBLE_EQ(history.limits().gradient_norm, 10 + 10e-6);
  history.add(5, 16);
  // Losses 1, 3, 5: mean 3, variance 8 / 2. Norms 10, 10, 16: mean 12, variance 24 / 2.
  EXPECT_DOUBLE_EQ(history.limits().loss, 3 + 3 * 2.0 + 3e-6);
  EXPECT_DOUBLE_EQ(history.limits().gradient_norm, 12 + 3 * std::sqrt(12.0) + 12e-6);
  history.add(3, 10);
  history.add(5, 16);  // the first one leaves the window: 3, 5, 3, 5
  EXPECT_DOUBLE_EQ(history.limits().loss, 4 + 3 * std::sqrt(4.0 / 3) + 4e-6);
}

TEST(OutlierHistoryTest, RoundingIsNoOutlier) {
  OutlierHistory history({.deviations = 6, .window = 10});
  for (int i = 0; i < 10; ++i) history.add(3.1, 0.7);
  EXPECT_GT(history.limits().loss, std::nextafter(3.1F, 4.0F));
  EXPECT_GT(history.limits().gradient_norm, std::nextafter(0.7F, 1.0F));
}

TEST(OutlierHistoryTest, ValuesThatAreNotFiniteAreNotAdded) {
  OutlierHistory history({.deviations = 3, .window = 4});
  history.add(1, 1);
  history.add(NAN, 1);
  history.add(1, INFINITY);
  EXPECT_EQ(history.state().losses, std::vector<double>{1});
  EXPECT_EQ(history.state().norms, std::vector<double>{1});
}

TEST(OutlierHistoryTest, IsOffWithoutDeviations) {
  OutlierHistory history;
  for (int i = 0; i < 500; ++i) history.add(1, 1);
  EXPECT_FALSE(history.limits().any());
  EXPECT_TRUE(history.state().losses.empty());
}

TEST(OutlierHistoryTest, AShorterWindowKeepsTheLastSteps) {
  OutlierHistory history({.deviations = 3, .window = 2});
  history.restore({{1, 2, 3, 4}, {5, 6, 7, 8}});
  EXPECT_EQ(history.state(), (OutlierHistory::State{{3, 4}, {7, 8}}));
}

// With p of the window at the new level h above the old one, the limit is p h + 6 h sqrt(p (1 - p))
// above the old one: h is below it when p > 1 / 37.
TEST(OutlierHistoryTest, FollowsALossThatRisesForGood) {
  OutlierHistory history({.deviations = 6, .window = 128});
  for (int i = 0; i < 128; ++i) history.add(3 + 1e-3 * (i % 2), 1);
  int skipped = 0;
  while (4 > history.limits().loss) {
    history.add(4, 1);
    ASSERT_LT(++skipped, 128);
  }
  EXPECT_EQ(skipped, 4);  // 128 / 37 = 3.5
}

}  // namespace
}  // namespace kintsugi
