// Expected values: lm-evaluation-harness, or sums that can be checked by hand.
#include "eval/scoring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "support/completions_client.h"
#include "support/errors.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;
using Values = std::vector<double>;

std::map<std::string, Metric> by_name(const std::vector<Metric>& metrics) {
  std::map<std::string, Metric> map;
  for (const Metric& metric : metrics) map[metric.name] = metric;
  return map;
}

struct Choices {
  std::vector<std::string> texts;
  Gold gold;
  std::vector<Values> logs, largest;
  Values unconditional;
};
MultipleChoiceScore score(const Choices& c) {
  std::vector<ContinuationScore> scores;
  for (std::size_t i = 0; i < c.texts.size(); ++i)
    scores.push_back(score_continuation(c.logs[i], c.largest[i]));
  return score_multiple_choice(c.texts, scores, c.gold, c.unconditional);
}

TEST(MultipleChoice, FiveDocumentsOfTwoChoices) {
  const std::vector<std::string> yes_no = {"yes", "no"};
  const std::vector<Choices> documents = {
      {yes_no, 0, {{-1.3545}, {-4.7514}}, {{-1.3545}, {-1.4254}}, {}},
      {yes_no, 1, {{-2.7534}, {-3.77}}, {{-0.826}, {-1.131}}, {}},
      {yes_no, 1, {{-2.698}, {-4.4855}}, {{-2.2591}, {-4.4855}}, {}},
      {yes_no, 0, {{-1.2972}, {-0.2267}}, {{-0.8733}, {-0.2267}}, {}},
      {yes_no, 0, {{-4.5715}, {-3.9144}}, {{-4.5715}, {-0.3569}}, {}}};
  std::vector<MultipleChoiceScore> scores;
  for (const Choices& document : documents) scores.push_back(score(document));
  const Values acc = {1, 0, 0, 0, 0}, norm = {1, 0, 0, 0, 1}, greedy = {1, 0, 1, 0, 1};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(scores[i].acc, acc[i]) << i;
    EXPECT_EQ(scores[i].acc_norm, norm[i]) << i;
    EXPECT_EQ(scores[i].exact_match, greedy[i]) << i;
  }
  const auto metrics = by_name(multiple_choice_metrics(scores));
  EXPECT_NEAR(metrics.at("acc").value, 0.2, 1e-12);
  EXPECT_NEAR(*metrics.at("acc").stderr_of_mean, 0.2, 1e-12);
  EXPECT_NEAR(metrics.at("exact_match").value, 0.6, 1e-12);
  EXPECT_NEAR(*metrics.at("exact_match").stderr_of_mean, std::sqrt(0.06), 1e-12);
  double brier = 0;  // of two choices: twice the square of the wrong one's probability
  for (const Choices& c : documents) {
    const std::size_t gold = static_cast<std::size_t>(std::get<std::int64_t>(c.gold));
    const double wrong = 1 / (1 + std::exp(c.logs[gold][0] - c.logs[1 - gold][0]));
    brier += 2 * wrong * wrong / 5;
  }
  EXPECT_NEAR(metrics.at("brier_score").value, brier, 1e-12);
  EXPECT_FALSE(metrics.at("brier_score").stderr_of_mean);
  EXPECT_FALSE(metrics.contains("acc_mutual_info"));
}

TEST(MultipleChoice, DividesByCharactersOrBytesOfTheChoice) {
  const MultipleChoiceScore gas = score({{"a gas", "carbon dioxide from the surrounding air"},
                                         1,
                                         {{-4}, {-1.5, -1, -2, -1.25, -0.75, -0.5, -1}},
                                         {{-4}, {-1, -1, -1, -1, -1, -1, -1}},
                                         {}});
  EXPECT_EQ(gas.acc, 0);
  EXPECT_EQ(gas.acc_norm, 1);
  // 8 characters, 11 bytes; the other choice has 8 of both.
  const MultipleChoiceScore letters =
      score({{"ääkkösiä", "aakkosia"}, 0, {{-3, -3}, {-5}}, {{-1, -3}, {-5}}, {}});
  EXPECT_EQ(letters.acc_norm, 0);   // -6/8 < -5/8
  EXPECT_EQ(letters.acc_bytes, 1);  // -6/12 > -5/8
  EXPECT_EQ(letters.exact_match, 0);
  // Two emoji: 2 characters, 8 bytes.
  const MultipleChoiceScore emoji =
      score({{"🙂🙂", "ok ok"}, 0, {{-2.5, -1.5}, {-6, -1}}, {{-2.5, -1.5}, {-1, -1}}, {}});
  EXPECT_EQ(emoji.acc, 1);
  EXPECT_EQ(emoji.acc_norm, 0);   // -4/2 < -7/5
  EXPECT_EQ(emoji.acc_bytes, 1);  // -4/8 > -7/5
}

TEST(MultipleChoice, TheFirstOfEqualChoicesIsChosen) {
  for (const std::int64_t gold : {0, 1}) {
    const MultipleChoiceScore tie =
        score({{"aa", "bb", "cc"}, gold, {{-2}, {-1, -1}, {-2.5}}, {{-2}, {-1, -0.5}, {-2.5}}, {}});
    EXPECT_EQ(tie.acc, gold == 0 ? 1 : 0);
    EXPECT_EQ(tie.acc_norm, gold == 0 ? 1 : 0);
    EXPECT_EQ(tie.exact_match, gold == 0 ? 1 : 0);
  }
}

TEST(MultipleChoice, GoldIsAnIndexATextOrSeveral) {
  const std::vector<std::string> choices = {"red", "green", "blue"};
  EXPECT_EQ(gold_indices("blue", choices), std::vector<std::int64_t>{2});
  EXPECT_TRUE(gold_indices("up", choices).empty());
  EXPECT_TRUE(gold_indices(3, choices).empty());
  EXPECT_EQ(gold_indices(std::vector<std::int64_t>{2, 9, 0}, choices),
            (std::vector<std::int64_t>{2, 0}));
  const auto acc = [&](const Gold& gold) {
    return score({choices, gold, {{-3}, {-2}, {-1}}, {{-3}, {-1}, {-0.5}}, {}});
  };
  EXPECT_EQ(acc("blue").acc, 1);
  EXPECT_EQ(acc("up").acc, 0);
  EXPECT_EQ(acc(std::vector<std::int64_t>{1, 2}).acc, 1);
  EXPECT_EQ(acc(std::vector<std::int64_t>{0, 1}).acc, 0);
  EXPECT_EQ(acc(std::vector<std::int64_t>{0, 1}).exact_match, 1);
  // Without exactly one right choice in each document there is no Brier score.
  const std::vector<MultipleChoiceScore> documents = {acc("blue"), acc("up")};
  EXPECT_FALSE(by_name(multiple_choice_metrics(documents)).contains("brier_score"));
}

TEST(MultipleChoice, MutualInformationSubtractsTheUnconditionalScore) {
  const Choices c{{"the cat", "a dog", "my goldfish"},
                  1,
                  {{-3.9509, -1.7652}, {-3.3086}, {-1.5437, -4.8617, -3.8987}},
                  {{-3.9509, -1.3633}, {-3.3086}, {-0.3863, -0.9548, -3.8987}},
                  {-5.8605, -4.4174, -13.9547}};
  const MultipleChoiceScore dog = score(c);  // 0.1444, 1.1088, 3.6506
  EXPECT_EQ(dog.acc, 1);
  EXPECT_EQ(dog.acc_mutual_info, 0);
  const auto metrics = by_name(multiple_choice_metrics(std::vector{dog}));
  EXPECT_EQ(metrics.at("acc_mutual_info").value, 0);
  EXPECT_FALSE(metrics.at("acc").stderr_of_mean) << "one document";
}

TEST(MultipleChoice, AnEmptyChoiceIsNeverChosenByLength) {
  const MultipleChoiceScore empty = score({{"", "b"}, 1, {{-1}, {-9}}, {{-1}, {-9}}, {}});
  EXPECT_EQ(empty.acc, 0);
  EXPECT_EQ(empty.acc_norm, 1);
  EXPECT_THROW(score({{}, 0, {}, {}, {}}), UserError);
}

TEST(Loglikelihood, PerplexityAndAccuracy) {
  const std::vector<ContinuationScore> documents = {
      score_continuation(Values{-3.2943, -0.6207, -4.1997}, Values{-2.4699, -0.4566, -1.2832}),
      score_continuation(Values{-2.8575}, Values{-2.8575}),
      score_continuation(Values{-3.6278}, Values{-3.6278}),
      score_continuation(Values{-2.7421}, Values{-0.8226}),
      score_continuation(Values{-0.2904, -3.6161}, Values{-0.2904, -2.9273})};
  EXPECT_NEAR(documents[0].log_probability, -8.1147, 1e-12);
  const auto metrics = by_name(loglikelihood_metrics(documents));
  EXPECT_NEAR(metrics.at("perplexity").value, 70.08578557910647, 1e-10);
  EXPECT_NEAR(metrics.at("acc").value, 0.4, 1e-12);
  EXPECT_NEAR(*metrics.at("acc").stderr_of_mean, 0.24494897427831783, 1e-12);
  const auto one = by_name(
      loglikelihood_metrics(std::vector{score_continuation(Values{-3.09}, Values{-0.927})}));
  EXPECT_NEAR(one.at("perplexity").value, std::exp(3.09), 1e-12);
  EXPECT_FALSE(one.at("acc").stderr_of_mean);
  EXPECT_TRUE(score_continuation({}, {}).is_greedy);
  EXPECT_THROW(loglikelihood_metrics({}), UserError);
}

TEST(Rolling, SumsAreDivided) {
  const RollingScore spaces =
      score_rolling(" = Title = \n\nSome text here . \n", Values{-7.5351, -15.7801});
  EXPECT_EQ(spaces.words, 9u) << "empty ends count";
  EXPECT_EQ(spaces.bytes, 31u);
  EXPECT_EQ(score_rolling("", {}).words, 1u);
  const std::vector<RollingScore> documents = {
      score_rolling("Öljy\u00A0ja\u2003vesi — żółw", Values{-5.5362, -10.8992}),
      score_rolling("plain text", Values{-13.8775})};
  EXPECT_EQ(documents[0].words, 5u);
  EXPECT_EQ(documents[0].bytes, 28u);
  const auto metrics = by_name(rolling_metrics(documents));
  EXPECT_NEAR(metrics.at("word_perplexity").value, 75.97575572035431, 1e-10);
  EXPECT_NEAR(metrics.at("byte_perplexity").value, 2.2204455961667158, 1e-12);
  EXPECT_NEAR(metrics.at("bits_per_byte").value, 1.1508492238148174, 1e-12);
  EXPECT_FALSE(metrics.at("bits_per_byte").stderr_of_mean);
  EXPECT_THROW(rolling_metrics(std::vector{RollingScore{-1, 1, 0}}), UserError);
}

TEST(Groups, AreWeightedBySizeAndPoolErrors) {
  const std::vector<GroupMember> four = {{0.1743119266055046, 0.036505615860285445, 109},
                                         {0.5653495440729484, 0.027371063426137064, 329},
                                         {0.6892655367231638, 0.02463205473981166, 354},
                                         {0.85, 0.0464867394979745, 60}};
  const Metric weighted = group_metric("acc", four, true);
  EXPECT_NEAR(weighted.value, 0.5868544600938967, 1e-12);
  EXPECT_NEAR(*weighted.stderr_of_mean, 0.015784152351624406, 1e-12);
  const std::vector<GroupMember> three = {{0.03125, 0.03125, 32},
                                          {0.9642857142857143, 0.013289435848843761, 196},
                                          {0.8682634730538922, 0.01853347060794688, 334}};
  const Metric plain = group_metric("acc", three, false);
  EXPECT_NEAR(plain.value, 0.6212663957798689, 1e-12);
  EXPECT_NEAR(*plain.stderr_of_mean, 0.012090324474859295, 1e-12);
  const std::vector<GroupMember> unknown = {{0.2, 0.03, 177}, {0.4, std::nullopt, 317}};
  EXPECT_FALSE(group_metric("acc", unknown, true).stderr_of_mean);
  EXPECT_NEAR(group_metric("acc", unknown, true).value, (0.2 * 177 + 0.4 * 317) / 494, 1e-12);
  EXPECT_THROW(group_metric("acc", {}, true), UserError);
}

TEST(F1, OfTheClassOne) {
  const std::vector<std::int64_t> gold = {1, 1, 0, 0, 1}, predicted = {1, 0, 1, 0, 1};
  EXPECT_NEAR(f1_score(gold, predicted), 2.0 * 2 / (3 + 3), 1e-15);
  const std::vector<std::int64_t> none = {0, 0}, other = {0, 2};
  EXPECT_EQ(f1_score(none, none), 0);
  EXPECT_THROW(f1_score(none, other), UserError);
}

std::string reply(const std::string& choices) { return "{\"choices\": [" + choices + "]}"; }
ContinuationScore score_reply(const std::string& logprobs, std::size_t first) {
  const std::vector<std::size_t> firsts = {first};
  return score_completions(reply("{\"index\": 0, \"logprobs\": " + logprobs + "}"), firsts,
                           "the reply")
      .at(0);
}

TEST(Completions, AreSummedWithoutTheGeneratedToken) {
  const std::string greedy =
      R"({"token_logprobs": [null, -6.88036, -4.876229, -0.965918, -1.772858, -2.233563, -6.412404,
          -6.129075], "top_logprobs": [null, {"cd'": -2.752144, "cd": -6.88036}, {"cd'": -1.950492,
          "cd": -4.876229}, {"b": -0.965918}, {"cd": -1.772858}, {"ing": -2.233563},
          {"cd": -6.412404}, {"cd": -6.129075}]})";
  EXPECT_NEAR(score_reply(greedy, 4).log_probability, -10.418825, 1e-12);
  EXPECT_TRUE(score_reply(greedy, 4).is_greedy);
  EXPECT_FALSE(score_reply(greedy, 1).is_greedy);
  EXPECT_EQ(score_reply(greedy, 7).log_probability, 0);
}

TEST(Completions, AreOrderedByIndex) {
  const auto choice = [](int index, double value) {
    return fmt::format(
        R"({{"index": {0}, "logprobs": {{"token_logprobs": [null, {1}, 0], "top_logprobs": [null,
            {{"a": {1}}}, {{"a": 0}}]}}}})",
        index, value);
  };
  const std::vector<std::size_t> firsts = {1, 1};
  const auto scores = score_completions(reply(choice(1, -2) + "," + choice(0, -1)), firsts, "r");
  EXPECT_EQ(scores[0].log_probability, -1);
  EXPECT_EQ(scores[1].log_probability, -2);
  EXPECT_THROW(score_completions(reply(choice(0, -2) + "," + choice(0, -1)), firsts, "r"),
               UserError);
  EXPECT_THAT(user_error_of([&] { score_completions(reply(choice(0, -2)), firsts, "r"); }),
              HasSubstr("1 choices for 2 prompts"));
}

TEST(Completions, OfAnotherFormAreRefused) {
  const std::vector<std::size_t> firsts = {1};
  for (const char* text :
       {"", "[]", "{\"choices\": 3}", "{\"choices\": [7]}", "{\"choices\": [{\"index\": 0}]}",
        "{\"choices\": [{\"index\": -1}]}", "{\"choices\": [{\"index\": 0, \"logprobs\": null}]}"})
    EXPECT_THAT(user_error_of([&] { score_completions(text, firsts, "the reply"); }),
                testing::StartsWith("the reply "))
        << text;
  for (const char* logprobs :
       {R"({"token_logprobs": [null, null, -1], "top_logprobs": [null, {"a": -1}, {"a": -1}]})",
        R"({"token_logprobs": [null, -1, -1], "top_logprobs": [null, {}, {"a": -1}]})",
        R"({"token_logprobs": [null, -1, -1], "top_logprobs": [null, {"a": "b"}, {"a": -1}]})",
        R"({"token_logprobs": [null, -1, -1], "top_logprobs": [null]})"})
    EXPECT_THROW(score_reply(logprobs, 1), UserError) << logprobs;
}

}  // namespace
}  // namespace kintsugi
