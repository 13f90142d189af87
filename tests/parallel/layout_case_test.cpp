// Tests the cases of the equivalence tests: their text form, their coverage, random draws,
// shrinking.
#include "support/layout_case.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "core/error.h"

namespace kintsugi {
namespace {

LayoutCase any_values(std::mt19937_64& random) {
  LayoutCase one;
  for (std::size_t f = 0; f < kFactors; ++f) {
    const auto& levels = levels_of(f).levels;
    // Half of the values are the simplest, so that some cases are valid.
    one.values[f] = random() % 2 == 0 ? levels.front() : levels[random() % levels.size()];
  }
  return one;
}

TEST(LayoutCase, TextComesBack) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 300; ++i) {
    const LayoutCase one = i % 2 == 0 ? any_values(random) : draw_case(random);
    EXPECT_EQ(parse_layout_case(to_string(one)), one) << to_string(one);
  }
  const LayoutCase one = parse_layout_case("tp=2  schedule=zb-h1 pp=4 family=qwen3 sp=1");
  EXPECT_EQ(one[kTp], 2);
  EXPECT_EQ(one.layout().schedule, PipelineKind::ZeroBubbleH1);
  EXPECT_TRUE(one.layout().sequence_parallel);
  EXPECT_EQ(one.training().model.family, Family::Qwen3);
  for (const char* text :
       {"tp", "tp=", "tp=two", "tp=2x", "tp=-1", "schedule=2f2b", "up=2", "sp=2"})
    EXPECT_THROW(parse_layout_case(text), UserError) << text;
}

TEST(LayoutCase, OwnRulesAreThoseOfFitLayout) {
  std::mt19937_64 random(2);
  std::map<bool, int> seen;
  for (int i = 0; i < 70000; ++i) {
    const LayoutCase one = any_values(random);
    ++seen[valid(one)];
    ASSERT_EQ(may_become_valid(one, false), valid(one)) << to_string(one);
  }
  EXPECT_GT(seen[true], 1000);
  EXPECT_GT(seen[false], 1000);
}

using Pair = std::tuple<std::size_t, int, std::size_t, int>;  // factor, level, factor, level

// Computed independently of covering_cases().
std::vector<Pair> pairs_of(const LayoutCase& one) {
  std::vector<Pair> pairs;
  for (std::size_t f = 0; f < kSteps; ++f)
    for (std::size_t g = f + 1; g < kSteps; ++g) pairs.emplace_back(f, one[f], g, one[g]);
  return pairs;
}

TEST(LayoutCase, EveryPairOfLevelsIsCoveredOrImpossible) {
  int impossible = 0;
  const std::vector<LayoutCase> cases = covering_cases(&impossible);
  std::set<Pair> covered;
  for (const LayoutCase& one : cases) {
    ASSERT_TRUE(valid(one)) << to_string(one);
    for (const Pair& pair : pairs_of(one)) covered.insert(pair);
  }
  std::size_t all = 0;
  for (std::size_t f = 0; f < kSteps; ++f)
    for (std::size_t g = f + 1; g < kSteps; ++g)
      all += levels_of(f).levels.size() * levels_of(g).levels.size();
  EXPECT_EQ(covered.size() + static_cast<std::size_t>(impossible), all);
  // A pair that no covering case contains must not occur in a random case either.
  std::mt19937_64 random(3);
  for (int i = 0; i < 300; ++i) {
    const LayoutCase one = draw_case(random);
    for (const Pair& pair : pairs_of(one)) EXPECT_TRUE(covered.contains(pair)) << to_string(one);
  }
  fmt::print("{} cases, {} pairs of levels; {} are impossible\n", cases.size(), all, impossible);
}

TEST(LayoutCase, DrawsAreValidAndOfAllKinds) {
  std::mt19937_64 random(4);
  std::map<std::size_t, int> split;
  std::set<int> ranks;
  for (int i = 0; i < 400; ++i) {
    const LayoutCase one = draw_case(random);
    ASSERT_TRUE(valid(one)) << to_string(one);
    for (const std::size_t extent : {kTp, kCp, kDp, kPp}) split[extent] += one[extent] > 1;
    ranks.insert(one.layout().ranks());
  }
  for (const auto& [extent, count] : split) {
    EXPECT_GT(count, 120) << levels_of(extent).name;
    EXPECT_LT(count, 300) << levels_of(extent).name;
  }
  EXPECT_LE(*ranks.begin(), 2);
  EXPECT_EQ(*ranks.rbegin(), 16);
}

TEST(LayoutCase, ShrinksToWhatMatters) {
  const LayoutCase large = parse_layout_case(
      "tp=2 cp=2 dp=1 pp=2 chunks=2 schedule=interleaved layers=8 passes=4 split=front sp=1 "
      "family=bloom length=24 zero=3 micro=2 uneven=1 dropout=1 recompute=full recompute_every=2 "
      "steps=20");
  ASSERT_TRUE(valid(large));
  const auto smallest = [&](const std::function<bool(const LayoutCase&)>& fails) {
    return to_string(shrink(large, fails));
  };
  EXPECT_EQ(smallest([](const LayoutCase&) { return true; }), "tp=1 cp=1 dp=1 pp=1 steps=1");
  EXPECT_EQ(smallest([](const LayoutCase& one) { return one[kPp] > 1 && one[kDropout] == 1; }),
            "tp=1 cp=1 dp=1 pp=2 layers=2 dropout=1 steps=1");
  EXPECT_EQ(smallest([](const LayoutCase& one) { return one[kChunks] > 1 && one[kTp] > 1; }),
            "tp=2 cp=1 dp=1 pp=2 chunks=2 schedule=interleaved layers=4 passes=2 steps=1");
  EXPECT_EQ(smallest([](const LayoutCase& one) { return one[kSequenceParallel] == 1; }),
            "tp=2 cp=1 dp=1 pp=1 sp=1 steps=1");
}

TEST(LayoutCase, AFailureTellsHowToRepeatIt) {
  EXPECT_EQ(command_for(parse_layout_case("dp=2 zero=3")),
            "make fuzz-layouts CASE='tp=1 cp=1 dp=2 pp=1 zero=3'");
}

}  // namespace
}  // namespace kintsugi
