// Requests: from tokens to text, and why a text ends.
#include "serve/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "comm/communicator.h"
#include "support/paths.h"

namespace kintsugi {
namespace {

using testing::ElementsAre;

// A small model without a tokenizer: the text is the list of ids.
class GenerateText : public testing::Test {
 protected:
  static std::string ids_of(const std::vector<SampledToken>& tokens, std::size_t count) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) text += std::to_string(tokens[i].id) + " ";
    return text;
  }
  GenerationResult run(const GenerationRequest& request) {
    streamed_.clear();
    return generate_text(model_, nullptr, request, [&](std::string_view text) {
      streamed_ += text;
      return ++calls_ != cancel_at_;
    });
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend(1);
  LocalCommunicator alone_{"tensor", backend_.get()};
  InferenceEngine model_{*backend_, alone_, test_data_directory() + "/llama", {}};
  GenerationRequest request_{.prompt = {7, 9}, .max_tokens = 8, .sampling = {.seed = 1}};
  std::string streamed_;
  int calls_ = 0, cancel_at_ = -1;
};

TEST_F(GenerateText, EndsAfterMaxTokens) {
  const GenerationResult result = run(request_);
  EXPECT_EQ(result.finish, FinishReason::Length);
  ASSERT_EQ(result.tokens.size(), 8u);
  EXPECT_EQ(result.text, ids_of(result.tokens, 8));
  EXPECT_EQ(streamed_, result.text);
  EXPECT_FALSE(result.tokens[0].logprob.has_value());
  EXPECT_EQ(run(request_).text, result.text) << "an earlier request changes nothing";
}

TEST_F(GenerateText, EndsBeforeAStopString) {
  const std::vector<SampledToken> all = run(request_).tokens;
  // The end of one token and the beginning of the next.
  request_.stop = {" " + std::to_string(all[3].id) + " "};
  const GenerationResult result = run(request_);
  EXPECT_EQ(result.finish, FinishReason::Stop);
  const std::string whole = ids_of(all, 8);
  EXPECT_EQ(result.text, whole.substr(0, whole.find(request_.stop[0])));
  EXPECT_EQ(streamed_, result.text);
  EXPECT_LE(result.tokens.size(), 4u);
}

TEST_F(GenerateText, EndsAtAStopToken) {
  const std::vector<SampledToken> all = run(request_).tokens;
  request_.stop_tokens = {1000, all[2].id};
  const GenerationResult result = run(request_);
  std::size_t first = 0;
  while (all[first].id != all[2].id) ++first;
  EXPECT_EQ(result.finish, FinishReason::Stop);
  EXPECT_EQ(result.tokens.size(), first);
  EXPECT_EQ(result.text, ids_of(all, first)) << "without the stop token";
}

TEST_F(GenerateText, EndsWhenItIsNoLongerWanted) {
  cancel_at_ = 3;
  const GenerationResult result = run(request_);
  EXPECT_EQ(result.finish, FinishReason::Cancelled);
  EXPECT_EQ(result.tokens.size(), 3u);
  EXPECT_EQ(result.text, ids_of(result.tokens, 3));
}

TEST_F(GenerateText, EndsAtTheEndOfTextToken) {
  std::vector<FinishReason> seen;
  for (std::uint64_t seed = 0; seed < 40 && seen.empty(); ++seed) {
    request_.sampling = {.temperature = 3, .seed = seed};
    request_.max_tokens = 60;
    const GenerationResult result = run(request_);
    if (result.tokens.size() < 60) seen.push_back(result.finish);
    for (const SampledToken& token : result.tokens) EXPECT_NE(token.id, model_.config().eos_token);
  }
  EXPECT_THAT(seen, ElementsAre(FinishReason::Stop));
}

TEST_F(GenerateText, LogprobsAreThoseOfScoring) {
  request_.sampling = {.temperature = 1.5, .top_k = 20, .seed = 6, .logprobs = 2};
  const GenerationResult result = run(request_);
  std::vector<std::int32_t> whole = request_.prompt;
  for (const SampledToken& token : result.tokens) whole.push_back(token.id);
  const std::vector<SampledToken> scores =
      run({.prompt = whole, .score_from = std::ssize(request_.prompt)}).scores;
  ASSERT_EQ(scores.size(), result.tokens.size());
  for (std::size_t i = 0; i < result.tokens.size(); ++i) {
    EXPECT_NEAR(result.tokens[i].logprob.value(), scores[i].logprob.value(), 1e-4);
    ASSERT_EQ(result.tokens[i].top.size(), 2u);
  }
}

// Greedy generation with a strong penalty does not repeat a token while others are left.
TEST_F(GenerateText, ThePenaltyCoversThePromptAndTheText) {
  request_.sampling = {.temperature = 0, .repetition_penalty = 1e6};
  request_.max_tokens = 20;
  std::vector<std::int32_t> seen = request_.prompt;
  for (const SampledToken& token : run(request_).tokens) {
    EXPECT_EQ(std::count(seen.begin(), seen.end(), token.id), 0) << token.id;
    seen.push_back(token.id);
  }
  EXPECT_GT(seen.size(), 3u);
}

}  // namespace
}  // namespace kintsugi
