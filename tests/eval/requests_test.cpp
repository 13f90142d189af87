// Expected values: the rules of lm-evaluation-harness, worked out by hand or by its own code.
#include "eval/requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "support/completions_client.h"
#include "support/errors.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;

struct EncodedPair {
  std::string context, continuation;
  std::int32_t prefix_token;
  std::map<std::string, TokenIds> table;
  TokenIds context_ids, continuation_ids;
};

TEST(EncodePair, SplitsTheEncodedWhole) {
  const std::vector<EncodedPair> cases = {
      // A trailing space, newlines and U+00A0 become part of the continuation.
      {"The capital of Finland is ",
       "Helsinki",
       50256,
       {{"The capital of Finland is", {464, 3139, 286, 17837, 318}},
        {"The capital of Finland is Helsinki", {464, 3139, 286, 17837, 318, 47688}}},
       {464, 3139, 286, 17837, 318},
       {47688}},
      {"def f():\n    ",
       "return",
       50256,
       {{"def f():", {4299, 277, 33529}}, {"def f():\n    return", {4299, 277, 33529, 198, 1441}}},
       {4299, 277, 33529},
       {198, 1441}},
      {"Price:\u00A0",
       "10 €",
       50256,
       {{"Price:", {18124, 25}}, {"Price:\u00A010 €", {18124, 25, 1849, 940, 10432}}},
       {18124, 25},
       {1849, 940, 10432}},
      // U+001F is white space for Python, U+200B is not.
      {"a\x1F",
       "b",
       0,
       {{"a", {1}},
        {"a\x1F"
         "b",
         {1, 7, 2}}},
       {1},
       {7, 2}},
      {"a\u200B",
       "b",
       0,
       {{"a\u200B", {1, 8}},
        {"a\u200B"
         "b",
         {1, 8, 2}}},
       {1, 8},
       {2}},
      // A token across the seam.
      {"The weather is un",
       "predictable today",
       50256,
       {{"The weather is un", {464, 6193, 318, 555}},
        {"The weather is unpredictable today", {464, 6193, 318, 22900, 1909}}},
       {464, 6193, 318, 555},
       {1909}},
      {"ab", "c", 0, {{"ab", {3}}, {"abc", {4}}}, {3}, {}},
      {"ab", "c", 0, {{"ab", {3, 5}}, {"abc", {4}}}, {3, 5}, {}},
      // An empty context.
      {"", "ab", 9, {{"ab", {3, 5}}}, {9}, {3, 5}},
      {"", "<s>ab", 0, {{"<s>ab", {0, 3}}}, {0}, {3}},
      {"", "<s>", 0, {{"<s>", {0}}}, {0}, {}}};
  for (const EncodedPair& c : cases) {
    const TokenPair pair = encode_pair(
        c.context, c.continuation, [&](const std::string& text) { return c.table.at(text); },
        c.prefix_token);
    EXPECT_EQ(pair.context, c.context_ids) << c.context;
    EXPECT_EQ(pair.continuation, c.continuation_ids) << c.context;
  }
}

TEST(EncodePair, RefusesWhatCannotBeScored) {
  const Encode nothing = [](const std::string&) { return TokenIds(); };
  EXPECT_EQ(user_error_of([&] { encode_pair(" \u2003", "ab", nothing, 0); }),
            "the context is white space only");
  EXPECT_EQ(user_error_of([&] { encode_pair("", "", nothing, 0); }), "nothing to score");
}

TEST(TruncatedInput, KeepsTheEnd) {
  const TokenPair fits{{10, 11, 12, 13, 14}, {500, 501, 502}};
  EXPECT_EQ(local_input(fits, 16).ids, (TokenIds{10, 11, 12, 13, 14, 500, 501}));
  EXPECT_EQ(local_input(fits, 16).scored, 3u);
  EXPECT_EQ(api_input(fits, 16).ids, (TokenIds{10, 11, 12, 13, 14, 500, 501, 502}));
  EXPECT_EQ(api_input(fits, 16).first_scored, 5u);
  // max_length + 1 tokens: the local model reads all but the last, the client drops two.
  const TokenPair exact{{10, 11, 12, 13, 14, 15}, {500, 501, 502}};
  EXPECT_EQ(local_input(exact, 8).ids, (TokenIds{10, 11, 12, 13, 14, 15, 500, 501}));
  EXPECT_EQ(api_input(exact, 8).ids, (TokenIds{12, 13, 14, 15, 500, 501, 502}));
  EXPECT_EQ(api_input(exact, 8).first_scored, 4u);
  EXPECT_EQ(local_input(exact, 3).ids, (TokenIds{15, 500, 501}));
  EXPECT_EQ(api_input(exact, 5).ids, (TokenIds{15, 500, 501, 502}));
  EXPECT_EQ(api_input(exact, 5).first_scored, 1u);
}

TEST(TruncatedInput, RefusesALongContinuation) {
  const TokenPair pair{{10, 11}, {500, 501, 502, 503}};
  EXPECT_EQ(user_error_of([&] { local_input(pair, 3); }),
            "the continuation alone exceeds max_length");
  EXPECT_EQ(local_input(pair, 4).ids, (TokenIds{11, 500, 501, 502}));
  EXPECT_EQ(user_error_of([&] { api_input(pair, 5); }), "no context is left");
  EXPECT_EQ(api_input(pair, 6).first_scored, 1u);
}

TokenIds numbers(std::int32_t first, std::int32_t last) {
  TokenIds ids;
  for (std::int32_t id = first; id <= last; ++id) ids.push_back(id);
  return ids;
}

TEST(RollingWindows, PredictEachTokenOnce) {
  const auto check = [](const TokenIds& tokens, std::size_t length, std::size_t context,
                        const std::vector<std::pair<TokenIds, TokenIds>>& expected) {
    const std::vector<TokenPair> windows = rolling_windows(tokens, 0, length, context);
    ASSERT_EQ(windows.size(), expected.size());
    for (std::size_t i = 0; i < windows.size(); ++i) {
      EXPECT_EQ(windows[i].context, expected[i].first) << i;
      EXPECT_EQ(windows[i].continuation, expected[i].second) << i;
    }
  };
  check({}, 4, 1, {});
  check(numbers(100, 104), 8, 1, {{{0}, numbers(100, 104)}});
  check(numbers(100, 107), 8, 1, {{{0}, numbers(100, 107)}});
  check(numbers(100, 108), 8, 1, {{{0}, numbers(100, 107)}, {numbers(100, 107), {108}}});
  check(numbers(100, 120), 8, 1,
        {{{0}, numbers(100, 107)},
         {{107}, numbers(108, 115)},
         {numbers(112, 115), numbers(116, 120)}});
  check(numbers(100, 119), 8, 3,
        {{{0}, numbers(100, 107)},
         {numbers(105, 107), numbers(108, 113)},
         {numbers(111, 113), numbers(114, 119)}});
  check(numbers(1, 3), 1, 1, {{{0}, {1}}, {{1}, {2}}, {{2}, {3}}});
}

TEST(RollingWindows, RefuseTooMuchContext) {
  EXPECT_THAT(user_error_of([] { rolling_windows({1}, 0, 4, 5); }), HasSubstr("5 tokens"));
  EXPECT_THROW(rolling_windows({1}, 0, 4, 0), UserError);
}

TEST(FewShotPrompt, JoinsExamples) {
  const std::vector<FewShotExample> water = {{"Question: What is ice?\nAnswer:", "frozen water"},
                                             {"Question: What is steam?\nAnswer:", "vapour"}};
  EXPECT_EQ(few_shot_prompt({}, {}, "Question: What is fog?\nAnswer:"),
            "Question: What is fog?\nAnswer:");
  EXPECT_EQ(
      few_shot_prompt({.description = "About physics.\n\n"}, water, "Question: fog?\nAnswer:"),
      "About physics.\n\nQuestion: What is ice?\nAnswer: frozen water\n\n"
      "Question: What is steam?\nAnswer: vapour\n\nQuestion: fog?\nAnswer:");
  EXPECT_EQ(
      few_shot_prompt({.target_delimiter = "", .fewshot_delimiter = "\nEND\n"},
                      std::vector<FewShotExample>{{"Hei=", "Hello"}, {"Kissa=", "Cat"}}, "Koira="),
      "Hei=Hello\nEND\nKissa=Cat\nEND\nKoira=");
}

TEST(FewShotPrompt, PutsAPrefixBeforeEachAnswer) {
  const std::vector<FewShotExample> sum = {{"Q: 1+1?", "2"}};
  EXPECT_EQ(
      few_shot_prompt({.description = "Answer.\n", .gen_prefix = "The answer is"}, sum, "Q: 2+2?"),
      "Answer.\nQ: 1+1? The answer is 2\n\nQ: 2+2? The answer is");
  // No delimiter where there is white space already.
  EXPECT_EQ(few_shot_prompt({.gen_prefix = "A:\u00A0"}, sum, "Q\n"),
            "Q: 1+1? A:\u00A02\n\nQ\nA:\u00A0");
  EXPECT_EQ(few_shot_prompt({.gen_prefix = "A:"}, sum, ""), "Q: 1+1? A: 2\n\nA:");
}

}  // namespace
}  // namespace kintsugi
