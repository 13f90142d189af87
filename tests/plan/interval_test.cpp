// The interval of a prediction.
#include "plan/search/interval.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/search/search.h"
#include "support/errors.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Interval, KindsOfSteps) {
  const Machine machine = load_machine("dgx-h100");
  PlanJob job{.model = load_preset("llama-1b"), .length = 4096, .batch = 64};
  Evaluation e{.layout = {.dp = 8}};
  e.step_s = 2;
  const auto kind = [&] { return step_kind(job, e, machine); };
  EXPECT_EQ(kind(), StepKind::Node);
  e.layout.dp = 16;
  EXPECT_EQ(kind(), StepKind::Nodes);
  e.step_s = 0.9;
  EXPECT_EQ(kind(), StepKind::Short);
  e.bubble = 0.3;
  e.tensor_s = 0.1;  // 11 % of the step
  EXPECT_EQ(kind(), StepKind::Waiting);
  job.model = load_preset("olmoe-1b-7b");
  EXPECT_EQ(kind(), StepKind::Mixture);
}

TEST(Interval, IsReadStrictly) {
  const std::string good = to_yaml(step_intervals());
  EXPECT_EQ(to_yaml(parse_step_intervals(good, "x")), good);
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return user_error_of([&] { parse_step_intervals(text, "x.yaml"); });
  };
  EXPECT_THAT(refused("one node", "several nodes"),
              AllOf(HasSubstr("x.yaml"), HasSubstr("must be given once")));
  EXPECT_THAT(refused("one node", "two nodes"), HasSubstr("two nodes"));
  EXPECT_THAT(refused("within: 1", "within: 0"), HasSubstr("within"));
  EXPECT_THAT(refused("apart:", "appart:"), HasSubstr("apart"));
}

TEST(Interval, Texts) {
  EXPECT_EQ((StepInterval{.within = 1.141}).text(), "± 14 %");
  EXPECT_EQ((StepInterval{.within = 2.91}).text(), "within a factor of 2.9");
  EXPECT_EQ((StepInterval{.within = 1.141}).short_text(), "14%");
  EXPECT_EQ((StepInterval{.within = 2.91}).short_text(), "x2.9");
}

// With --risk the order is that of the upper ends.
TEST(Interval, RiskOrdersByTheUpperEnd) {
  const PlanJob job{.model = load_preset("gpt2-1.5b"), .length = 1024, .batch = 512};
  Planner planner(job, load_machine("juwels-booster"));
  SearchLimits limits{.gpus = 64, .best = 1000};
  const auto upper = [&](const Evaluation& e) { return e.step_s * interval_of(planner, e).within; };
  const SearchResult usual = search_layouts(planner, limits);
  limits.risk = true;
  const SearchResult robust = search_layouts(planner, limits);
  bool differs = false;
  for (std::size_t i = 1; i < robust.best.size(); ++i) {
    EXPECT_LE(upper(robust.best[i - 1]), upper(robust.best[i]));
    EXPECT_LE(usual.best[i - 1].step_s, usual.best[i].step_s);
    differs |= !(usual.best[i].layout == robust.best[i].layout);
  }
  EXPECT_TRUE(differs);
  EXPECT_FALSE(told_apart(planner, usual.best[0], usual.best[0]));
  EXPECT_TRUE(told_apart(planner, usual.best[0], usual.best.back()));
}

}  // namespace
}  // namespace kintsugi
