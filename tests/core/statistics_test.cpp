#include "core/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kintsugi {
namespace {

TEST(Statistics, MeanAndMedian) {
  EXPECT_EQ(mean({1, 2, 6}), 3);
  EXPECT_EQ(median({9, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 100}), 3.5);
  EXPECT_EQ(median({-7}), -7);
  EXPECT_TRUE(std::isnan(mean({})));
  EXPECT_TRUE(std::isnan(median({})));
}

TEST(Statistics, Quantile) {
  EXPECT_EQ(quantile({30, 10, 20}, 0), 10);
  EXPECT_EQ(quantile({30, 10, 20}, 1), 30);
  EXPECT_EQ(quantile({30, 10, 20}, 0.5), 20);
  EXPECT_EQ(quantile({30, 10, 20}, 0.25), 15);
  EXPECT_EQ(quantile({7}, 0.9), 7);
  EXPECT_TRUE(std::isnan(quantile({}, 0.5)));
}

}  // namespace
}  // namespace kintsugi
