#include "plan/search/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "plan/search/tuning_report.h"

namespace kintsugi {
namespace {

// Layouts of 64 ranks with known rates; the predictions prefer another corner than the true rates.
class TunerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!built_with_dlib()) GTEST_SKIP() << "built without dlib";
    for (const int tp : {1, 2, 4, 8})
      for (const int pp : {1, 2, 4, 8})
        for (const std::int64_t micro : {1, 2, 4, 8, 16})
          for (const int zero : {0, 1, 2, 3}) {
            if (tp * pp > 32 || (pp > 1 && zero > 1)) continue;
            Evaluation e{
                .layout = {.tp = tp, .pp = pp, .dp = 64 / (tp * pp), .micro_batch = micro}};
            e.layout.zero = zero;
            e.tokens_per_s_per_gpu = rate(e.layout, 1, 8, 2, 0) / 64;
            e.step_s = 1 / e.tokens_per_s_per_gpu;
            candidates_.push_back(e);
          }
    std::sort(candidates_.begin(), candidates_.end(),
              [](const Evaluation& a, const Evaluation& b) { return a.step_s < b.step_s; });
  }

  // Maximal at the given values, and smaller by a factor for each doubling away from them.
  static double rate(const Layout& l, int tp, int pp, std::int64_t micro, int zero) {
    const auto away = [](double a, double b) { return std::pow(std::log2(a / b), 2); };
    return 1e6 *
           std::exp(-0.15 * away(l.tp, tp) - 0.1 * away(l.pp, pp) -
                    0.08 * away(static_cast<double>(l.micro_batch), static_cast<double>(micro)) -
                    0.05 * std::pow(l.zero - zero, 2));
  }
  static double truth(const Layout& l) { return rate(l, 4, 1, 8, 2); }
  double best_truth() const {
    double best = 0;
    for (const Evaluation& e : candidates_) best = std::max(best, truth(e.layout));
    return best;
  }

  std::vector<Evaluation> candidates_;
};

TEST_F(TunerTest, FindsTheBestInFewerTrialsThanHalfOfThem) {
  LayoutTuner tuner(candidates_);
  std::set<std::size_t> tried;
  double best = 0;
  while (best < best_truth()) {
    const auto next = tuner.next();
    ASSERT_TRUE(next);
    EXPECT_TRUE(tried.insert(*next).second) << "twice";
    const double measured = truth(candidates_[*next].layout);
    best = std::max(best, measured);
    tuner.report(*next, {.tokens_per_s = measured});
  }
  RecordProperty("trials", static_cast<int>(tried.size()));
  EXPECT_LT(tried.size(), candidates_.size() / 2);
}

TEST_F(TunerTest, BeginsWithTheModelsBestAndWaitsForThem) {
  LayoutTuner tuner(candidates_, 3);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(tuner.next(), i);
  EXPECT_EQ(tuner.next(), std::nullopt);
  tuner.report(2, {.tokens_per_s = 10});
  tuner.report(0, {.failure = "out of memory"});
  EXPECT_EQ(tuner.next(), std::nullopt);
  tuner.report(1, {.tokens_per_s = 12});
  EXPECT_TRUE(tuner.next());
}

// Four trials at a time that end in any order; some fail.
TEST_F(TunerTest, ManyAtOnceInAnyOrder) {
  LayoutTuner tuner(candidates_);
  std::mt19937 random(7);
  std::vector<std::size_t> open;
  std::set<std::size_t> tried;
  double best = 0;
  while (best < best_truth()) {
    while (open.size() < 4) {
      const auto next = tuner.next();
      if (!next) break;
      ASSERT_TRUE(tried.insert(*next).second);
      open.push_back(*next);
    }
    ASSERT_FALSE(open.empty());
    const std::size_t at = random() % open.size(), candidate = open[at];
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
    const Layout& layout = candidates_[candidate].layout;
    if (layout.pp == 8 ||
        layout.micro_batch == 16) {  // including layouts with the best predictions
      tuner.report(candidate, {.failure = "out of memory"});
      continue;
    }
    best = std::max(best, truth(layout));
    tuner.report(candidate, {.tokens_per_s = truth(layout)});
  }
  RecordProperty("trials", static_cast<int>(tried.size()));
  EXPECT_LT(tried.size(), candidates_.size() / 2);
}

TEST_F(TunerTest, TriesEachOnceAndThenNoMore) {
  for (const bool fails : {false, true}) {
    LayoutTuner tuner({candidates_.begin(), candidates_.begin() + 60});
    std::set<std::size_t> tried;
    while (const auto next = tuner.next()) {
      ASSERT_TRUE(tried.insert(*next).second);
      TrialResult result{.tokens_per_s = 1};
      if (fails) result = {.failure = "a launcher that never works"};
      tuner.report(*next, result);
    }
    EXPECT_EQ(tried.size(), 60u);
  }
}

TEST_F(TunerTest, WhatIsKnownIsNotTriedAgain) {
  LayoutTuner tuner(candidates_);
  const auto found = tuner.find(candidates_[1].layout);
  ASSERT_EQ(found, 1u);
  EXPECT_EQ(tuner.find({.tp = 3}), std::nullopt);
  tuner.report(1, {.tokens_per_s = 5});
  tuner.report(77, {.failure = "took too long"});
  std::set<std::size_t> tried;
  while (const auto next = tuner.next()) {
    tried.insert(*next);
    tuner.report(*next, {.tokens_per_s = truth(candidates_[*next].layout)});
  }
  EXPECT_EQ(tried.size(), candidates_.size() - 2);
  EXPECT_FALSE(tried.contains(1) || tried.contains(77));
}

TEST_F(TunerTest, OneLayoutIsASearchToo) {
  LayoutTuner tuner({candidates_[0]});
  EXPECT_EQ(tuner.next(), 0u);
  tuner.report(0, {.tokens_per_s = 5});
  EXPECT_EQ(tuner.next(), std::nullopt);
}

// Exactly the planner's layouts within the range.
TEST(TrialCandidates, AreWhatFitsOrNearlyDoes) {
  const PlanJob job{.model = load_preset("llama-8b"), .length = 4096, .batch = 64};
  Planner planner(job, load_machine("dgx-h100"));
  const SearchLimits limits{.gpus = 16, .recompute = "none"};
  const double room = planner.machine().gpu.memory_gb * 1e9;
  const TrialLimits range{.memory = 1.2, .slower = 1.5};
  const SearchResult best = search_layouts(planner, limits);
  std::set<std::string> expected;
  for_each_layout(job, planner.machine(), limits, [&](const Layout& layout) {
    const Evaluation e = planner.evaluate(layout);
    if (e.memory_bytes <= 1.2 * room && e.step_s <= 1.5 * best.best.front().step_s)
      expected.insert(to_string(layout));
  });
  const std::vector<Evaluation> found = trial_candidates(planner, limits, range);
  std::set<std::string> names;
  bool misfits = false;
  for (const Evaluation& e : found) {
    names.insert(to_string(e.layout));
    EXPECT_FALSE(misfits && e.fits) << "what fits comes first";
    misfits = misfits || !e.fits;
  }
  EXPECT_EQ(names, expected);
  EXPECT_EQ(names.size(), found.size());
  EXPECT_TRUE(misfits);
  EXPECT_EQ(found.front().layout, best.best.front().layout);
  EXPECT_DOUBLE_EQ(tokens_per_s(found.front()), job.tokens() / found.front().step_s);
}

Trial trial(double predicted, double measured) { return {{}, predicted, {measured, {}}, 1}; }

TEST(TuningReport, AgreementOfModelAndMeasurement) {
  // Ranks 1 2 3 4 5 against 2 1 4 3 5: 1 - 6 x 4 / (5 x 24) = 0.8.
  const std::vector<Trial> trials = {trial(10, 8),   trial(20, 7),
                                     trial(30, 60),  trial(40, 50),
                                     trial(50, 100), {{}, 60, {0, "out of memory"}, 1}};
  const ModelAgreement agreement = agreement_of(trials);
  EXPECT_EQ(agreement.trials, 5u);
  EXPECT_DOUBLE_EQ(agreement.correlation, 0.8);
  EXPECT_DOUBLE_EQ(agreement.ratio, 1.25);
  EXPECT_EQ(best_of(trials)->predicted, 50);
  EXPECT_THAT(tuning_table(trials), testing::AllOf(testing::HasSubstr("6 trials, 1 failed"),
                                                   testing::HasSubstr("rank correlation 0.80")));
  EXPECT_TRUE(std::isnan(agreement_of({trial(1, 2), trial(2, 3)}).correlation));
  EXPECT_EQ(best_of({trials.back()}), std::nullopt);
}

}  // namespace
}  // namespace kintsugi
