#include <gtest/gtest.h>

#include <bitset>
#include <random>

#include "report/profile/profile.h"

namespace kintsugi {
namespace {

constexpr int kMoments = 24;
using Moments = std::bitset<kMoments>;  // which unit intervals are in a set

Moments moments_of(const TimeIntervals& set) {
  Moments moments;
  for (const TimeInterval& one : set)
    for (int t = 0; t < kMoments; ++t)
      if (one.begin <= t && t + 1 <= one.end) moments.set(static_cast<std::size_t>(t));
  return moments;
}

void expect_in_order(const TimeIntervals& set) {
  for (std::size_t i = 0; i < set.size(); ++i) {
    EXPECT_LT(set[i].begin, set[i].end);
    if (i > 0) {
      EXPECT_LE(set[i - 1].end, set[i].begin);
    }
  }
}

TEST(Intervals, AreSetsOfMoments) {
  std::mt19937 random(5);
  std::uniform_int_distribution<int> moment(0, kMoments), count(0, 6);
  const auto draw = [&] {
    TimeIntervals any;
    for (int i = count(random); i > 0; --i) {
      const double begin = moment(random), end = moment(random);
      any.push_back({begin, end});
    }
    return any;
  };
  for (int round = 0; round < 500; ++round) {
    const TimeIntervals any = draw(), other = draw();
    const TimeIntervals a = merged(any), b = merged(other);
    const TimeIntervals both = common(a, b), rest = without(a, b);
    const Moments x = moments_of(any), y = moments_of(other);
    EXPECT_EQ(moments_of(a), x);
    EXPECT_EQ(moments_of(both), x & y);
    EXPECT_EQ(moments_of(rest), x & ~y);
    EXPECT_EQ(length_of(a), static_cast<double>(x.count()));
    EXPECT_EQ(length_of(both), static_cast<double>((x & y).count()));
    EXPECT_EQ(length_of(rest), static_cast<double>((x & ~y).count()));
    for (const TimeIntervals* set : {&a, &both, &rest}) expect_in_order(*set);
  }
}

TEST(Intervals, TouchingOnesBecomeOne) {
  EXPECT_EQ(merged({{2, 3}, {0, 1}, {1, 2}, {5, 5}, {7, 6}}), (TimeIntervals{{0, 3}}));
}

}  // namespace
}  // namespace kintsugi
