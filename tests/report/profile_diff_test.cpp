#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/profile/analysis.h"
#include "report/profile/profile_output.h"
#include "support/errors.h"
#include "support/profile_spans.h"

namespace kintsugi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

// One step of 10 s with operations one after the other.
ProfileAnalysis analysis_of(const std::vector<std::pair<std::string, double>>& operations,
                            double step_s = 10) {
  std::vector<TraceSpan> all{spans::step(1, 0, step_s)};
  double at = 0;
  for (const auto& [name, seconds] : operations) {
    all.push_back(spans::operation(static_cast<std::int64_t>(all.size()), name, at, at + seconds));
    at += seconds;
  }
  return analyze(spans::one_rank(all), "test");
}

TEST(ProfileDiff, ListsTheLargestChangeFirst) {
  const ProfileDiff diff = compare_profiles(
      analysis_of({{"same", 1}, {"faster", 3}, {"slower", 1}, {"slower", 1}, {"gone", 0.5}}),
      analysis_of({{"same", 1.01}, {"faster", 0.5}, {"slower", 2}, {"slower", 1.5}, {"new", 0.2}},
                  11));
  std::vector<std::string> names;
  for (const OperationChange& one : diff.operations)
    names.push_back(fmt::format("{} {}", one.name, to_string(one.kind)));
  EXPECT_THAT(names, ElementsAre("faster faster", "slower slower", "gone removed", "new added",
                                 "same unchanged"));
  const OperationChange& slower = diff.operations[1];
  EXPECT_DOUBLE_EQ(slower.calls_before, 2);
  EXPECT_DOUBLE_EQ(slower.before_s, 2);
  EXPECT_NEAR(slower.delta_s(), 1.5, 1e-12);
  EXPECT_THAT(
      diff.headline(),
      StartsWith("slower got slower the most: +1500.000 ms per step (+75.0 %); a step takes "
                 "11000.000 ms instead of 10000.000 ms (+10.0 %)"));
  const auto& [before, after] = diff.categories[static_cast<std::size_t>(TimeCategory::Other)];
  EXPECT_NEAR(before, 3.5, 1e-12);
  EXPECT_NEAR(after, 11 - 5.21, 1e-12);
  EXPECT_THAT(diff_text(diff), StartsWith("slower got slower the most"));
  EXPECT_EQ(diff_json(diff).at("operations").at(0).at("name"), "faster");
  EXPECT_NEAR(diff_json(diff).at("operations").at(0).at("delta_ms").get<double>(), -2500, 1e-9);
}

TEST(ProfileDiff, SaysIfNothingGotSlower) {
  const ProfileAnalysis one = analysis_of({{"a", 1}, {"b", 2}});
  EXPECT_THAT(compare_profiles(one, one).headline(), StartsWith("no operation got slower; "));
  EXPECT_THAT(compare_profiles(one, analysis_of({{"a", 1}, {"b", 1}})).headline(),
              StartsWith("no operation got slower; "));
}

// A new operation costs time, too.
TEST(ProfileDiff, AnAddedOperationCanBeTheCause) {
  EXPECT_THAT(
      compare_profiles(analysis_of({{"a", 1}}), analysis_of({{"a", 1.5}, {"b", 2}})).headline(),
      StartsWith("b got slower the most: +2000.000 ms per step; "));
}

TEST(ProfileHints, NameWhatIsAboveItsThreshold) {
  const auto hints = [](std::vector<TraceSpan> more, ProfileFacts facts = {}) {
    std::vector<TraceSpan> all{spans::step(1, 0, 100)};
    all.insert(all.end(), more.begin(), more.end());
    return analyze(spans::one_rank(all, std::move(facts)), "test").hints;
  };
  const auto busy = [](double end) { return spans::operation(1, "work", 0, end); };
  EXPECT_THAT(hints({busy(95)}), IsEmpty());
  EXPECT_THAT(hints({busy(94), spans::of(SpanKind::Data, "data wait", 94, 99)}), IsEmpty());
  EXPECT_THAT(hints({busy(94), spans::of(SpanKind::Data, "data wait", 94, 100)}),
              ElementsAre(StartsWith("6 % of a step waits for tokens")));
  EXPECT_THAT(hints({busy(90), spans::communication("dp", 90, 100)}), IsEmpty());
  EXPECT_THAT(hints({busy(89), spans::communication("dp", 80, 100)}),
              ElementsAre(StartsWith("11 % of a step is exposed communication")));
  EXPECT_THAT(hints({busy(80), spans::of(SpanKind::Host, "queue the step", 0, 95)}),
              ElementsAre(HasSubstr("idle for 20 % of a step, most of it while the host is in "
                                    "\"queue the step\"")));
  // 20 s at half of the attainable rate lose more than 5 s at a tenth of it.
  TraceSpan half = spans::operation(1, "half", 0, 20), tenth = spans::operation(2, "tenth", 20, 25);
  half.work = tenth.work = WorkKind::Memory;
  half.bytes = 100;
  tenth.bytes = 5;
  EXPECT_THAT(
      hints({half, tenth, spans::operation(3, "rest", 25, 100)}, {.memory_bytes_per_s = 10}),
      ElementsAre(StartsWith("half reaches 50 % of its attainable rate and takes 20.0 %")));
}

TEST(StepTerms, AreThoseOfThePlanner) {
  const auto with = [](TraceSpan span, WorkKind work) {
    span.work = work;
    return span;
  };
  Profile profile;
  RankTrace first{.rank = 0}, last{.rank = 1};
  first.spans = {
      spans::step(1, 0, 20),
      with(spans::operation(1, "matmul", 0, 4, "forward 0"), WorkKind::Matmul),
      with(spans::operation(2, "attention", 4, 6, "forward 0"), WorkKind::Attention),
      with(spans::operation(3, "norm", 6, 7, "backward 0"), WorkKind::Memory),
      with(spans::operation(4, "matmul", 7, 8, "optimizer"), WorkKind::Matmul),
      with(spans::operation(5, "adamw", 8, 10, "optimizer"), WorkKind::Memory),
      with(spans::operation(6, "add", 10, 11, "sum gradients"), WorkKind::Memory),
      spans::communication("pp < 1", 11, 16, "message"),  // 3 s of them wait for the other rank
      spans::communication("shard", 16, 18, "gather"),
  };
  last.spans = {spans::communication("pp > 0", 14, 16, "message")};
  profile.ranks = {first, last};
  const ProfileAnalysis analysis = analyze(profile, "test");
  const StepTerms& terms = analysis.terms;
  EXPECT_DOUBLE_EQ(terms.matmul_s, 4);
  EXPECT_DOUBLE_EQ(terms.attention_s, 2);
  EXPECT_DOUBLE_EQ(terms.memory_s, 1);
  EXPECT_DOUBLE_EQ(terms.optimizer_s, 4);
  EXPECT_DOUBLE_EQ(terms.bubble_s, 3);
  EXPECT_DOUBLE_EQ(terms.communication_s, 4);
  EXPECT_DOUBLE_EQ(terms.step_s, 20);
  EXPECT_DOUBLE_EQ(terms.other_s(), 2);
  const PredictedStep predicted{"there", {.matmul_s = 2, .step_s = 10}};
  EXPECT_THAT(prediction_text(analysis, predicted), HasSubstr("predicted for there"));
  const auto json = prediction_json(analysis, predicted);
  EXPECT_EQ(json.at("terms").at(0).at("name"), "matmul");
  EXPECT_DOUBLE_EQ(json.at("terms").at(0).at("measured_ms").get<double>(), 4000);
  EXPECT_DOUBLE_EQ(json.at("terms").at(0).at("predicted_ms").get<double>(), 2000);
}

TEST(ProfileAnalysis, IsOfOneRankIfAsked) {
  Profile profile;
  for (const int rank : {3, 5})
    profile.ranks.push_back({.rank = rank, .spans = {spans::step(1, 0, rank)}});
  EXPECT_DOUBLE_EQ(analyze(profile, "test").step_s(), 4);
  EXPECT_DOUBLE_EQ(analyze(profile, "test", 5).step_s(), 5);
  EXPECT_THROW(analyze(profile, "test", 4), UserError);
  EXPECT_THROW(analyze(spans::one_rank({}), "test"), UserError);
}

TEST(ProfileAnalysis, TheJsonHasTheFieldsOfThePage) {
  Profile profile = spans::one_rank(
      {spans::step(20, 0, 2), spans::operation(1, "matmul", 0, 1, "forward 0", "layer 0")},
      {.first_step = 20, .last_step = 20, .step_s = {2.0}, .ranks = 4, .device = "cpu"});
  const auto json = profile_json(analyze(profile, "test"));
  for (const char* key : {"steps", "step_ms", "ranks", "categories", "operations", "phases",
                          "layers", "idle", "gaps", "communication", "terms", "hints"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json.at("categories").at(0).at("name"), "Kernel");
  EXPECT_DOUBLE_EQ(json.at("categories").at(0).at("ms").get<double>(), 1000);
  EXPECT_DOUBLE_EQ(json.at("ranks").at(0).at("categories").at("Other").get<double>(), 1000);
  EXPECT_TRUE(json.at("operations").at(0).at("attainable").is_null());
  EXPECT_EQ(json.at("layers").at(0).at("name"), "layer 0");
  EXPECT_THAT(profile_text(analyze(profile, "test")),
              StartsWith("step 20 on 1 of 4 ranks, cpu\na step takes 2000.000 ms (by the trainer's "
                         "clock 2000.000 ms)\n"));
}

}  // namespace
}  // namespace kintsugi
