// Bodies of requests to the server: what is accepted, and how a mistake is reported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "serve/http/request_bodies.h"
#include "support/mutated_bytes.h"
#include "support/sanitizers.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using Ids = std::vector<std::int32_t>;

const RequestLimits kLimits{.max_batch = 4, .max_tokens = 100};

CompletionBody completion(const std::string& fields) {
  return parse_completion_body("{\"prompt\": \"a\"" + fields + "}", kLimits);
}
template <class Action>
HttpError http_error_of(Action&& action) {
  try {
    action();
  } catch (const HttpError& error) {
    return error;
  }
  ADD_FAILURE() << "no HttpError";
  return {0, "", ""};
}
std::string completion_mistake(const std::string& fields) {
  const HttpError error = http_error_of([&] { completion(fields); });
  EXPECT_EQ(error.status(), 400) << fields;
  return error.what();
}
std::string chat_mistake(const std::string& body) {
  const HttpError error = http_error_of([&] { parse_chat_body(body, kLimits); });
  EXPECT_EQ(error.status(), 400) << body;
  return error.what();
}

TEST(CompletionBody, HasDefaultsOfTheApi) {
  const CompletionBody body = completion("");
  EXPECT_EQ(body.sampling.temperature, 1.0);
  EXPECT_EQ(body.sampling.logprobs, -1);
  EXPECT_EQ(body.n, 1);
  EXPECT_FALSE(body.max_tokens || body.seed || body.echo || body.stream);
}

TEST(CompletionBody, TakesFourKindsOfPrompts) {
  const auto prompts = [](const std::string& value) {
    return parse_completion_body("{\"prompt\": " + value + "}", kLimits).prompts;
  };
  EXPECT_THAT(prompts("\"x\""), ElementsAre(PromptInput("x")));
  EXPECT_THAT(prompts("[\"x\", \"y\"]"), ElementsAre(PromptInput("x"), PromptInput("y")));
  EXPECT_THAT(prompts("[5, 6]"), ElementsAre(PromptInput(Ids{5, 6})));
  EXPECT_THAT(prompts("[[5], [6, 7]]"), ElementsAre(PromptInput(Ids{5}), PromptInput(Ids{6, 7})));
  for (const char* wrong : {"5", "[]", "null", "{}", "[\"x\", 5]", "[[5], 6]", "[[-1]]", "[1.5]",
                            "[true]", "[[[1]]]", "[4294967296]", "[1,2,\"x\"]",
                            "[\"a\",\"b\",\"c\","
                            "\"d\",\"e\"]"})
    EXPECT_THAT(http_error_of([&] { prompts(wrong); }).what(), StartsWith("prompt")) << wrong;
}

TEST(CompletionBody, ReadsItsFields) {
  const CompletionBody body = completion(
      R"(, "temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.5,
         "seed": -1, "stop": "END", "stop_token_ids": [3], "n": 2, "max_tokens": 7, "logprobs": 0,
         "stream": true, "stream_options": {"include_usage": true}, "model": "m", "user": "me")");
  EXPECT_EQ(body.sampling.temperature, 0);
  EXPECT_EQ(body.sampling.top_p, 0.5);
  EXPECT_EQ(body.sampling.top_k, 0) << "-1 means all";
  EXPECT_EQ(body.sampling.min_p, 0.1);
  EXPECT_EQ(body.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(body.sampling.logprobs, 0);
  EXPECT_EQ(body.seed, UINT64_MAX);
  EXPECT_THAT(body.stop, ElementsAre("END"));
  EXPECT_THAT(body.stop_tokens, ElementsAre(3));
  EXPECT_EQ(body.n, 2);
  EXPECT_EQ(body.max_tokens, 7);
  EXPECT_TRUE(body.stream && body.include_usage);
  EXPECT_EQ(body.model, "m");
}

TEST(CompletionBody, NamesTheFieldOfAMistake) {
  for (const auto& [fields, name] : std::vector<std::pair<const char*, const char*>>{
           {R"(, "temperature": "hot")", "temperature: "},
           {R"(, "temperature": -1)", "temperature: "},
           {R"(, "temperature": 1e400)", "the body is not JSON"},
           {R"(, "top_p": 2)", "top_p: "},
           {R"(, "top_k": 1.5)", "top_k: "},
           {R"(, "max_tokens": 0)", "max_tokens: must be a whole number from 1 to 100"},
           {R"(, "max_tokens": 101)", "max_tokens: "},
           {R"(, "max_tokens": 18446744073709551615)", "max_tokens: "},
           {R"(, "n": 0)", "n: "},
           {R"(, "n": true)", "n: "},
           {R"(, "logprobs": true)", "logprobs: "},
           {R"(, "logprobs": 21)", "logprobs: "},
           {R"(, "echo": 1)", "echo: "},
           {R"(, "stop": [1])", "stop: "},
           {R"(, "stop": [""])", "stop: "},
           {R"(, "stop_token_ids": "x")", "stop_token_ids: "},
           {R"(, "seed": 1.5)", "seed: "},
           {R"(, "stream": "yes")", "stream: "},
           {R"(, "stream_options": {"include_usage": true})", "stream_options: needs stream"},
           {R"(, "stream": true, "stream_options": {"include_usage": 1})",
            "stream_options.include_usage: "},
           {R"(, "stream": true, "stream_options": 1)", "stream_options: must be an object"},
           {R"(, "model": 3)", "model: "}})
    EXPECT_THAT(completion_mistake(fields), StartsWith(name)) << fields;
}

TEST(CompletionBody, RefusesWhatWouldChangeTheResult) {
  for (const char* field :
       {"logit_bias\": {\"5\": 1}", "presence_penalty\": 0.5", "suffix\": \"x\"",
        "frequency_penalty\": -1", "best_of\": 3", "ignore_eos\": true"})
    EXPECT_THAT(completion_mistake(std::string(", \"") + field),
                AllOf(StartsWith(std::string(field).substr(0, std::string(field).find('"'))),
                      HasSubstr("not supported")));
  EXPECT_NO_THROW(completion(R"(, "logit_bias": {}, "presence_penalty": 0, "suffix": null,
                                 "frequency_penalty": 0.0, "best_of": 1, "service_tier": "auto")"));
}

TEST(CompletionBody, AllowsNoTokensOnlyToScore) {
  EXPECT_EQ(completion(R"(, "max_tokens": 0, "echo": true)").max_tokens, 0);
  EXPECT_THAT(completion_mistake(R"(, "max_tokens": 0, "echo": false)"), StartsWith("max_tokens"));
}

TEST(CompletionBody, CountsPromptsTimesN) {
  EXPECT_NO_THROW(parse_completion_body(R"({"prompt": ["a", "b"], "n": 2})", kLimits));
  EXPECT_THAT(http_error_of([] {
                parse_completion_body(R"({"prompt": ["a", "b"], "n": 3})", kLimits);
              }).what(),
              HasSubstr("--max-batch"));
}

TEST(ChatBody, ReadsMessages) {
  const ChatBody body = parse_chat_body(
      R"({"messages": [{"role": "developer", "content": "s"}, {"role": "user", "content":
          [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
          "max_tokens": 5, "max_completion_tokens": 6, "logprobs": true, "top_logprobs": 3})",
      kLimits);
  EXPECT_THAT(body.messages, ElementsAre(ChatMessage{"system", "s"}, ChatMessage{"user", "ab"}));
  EXPECT_EQ(body.max_tokens, 6);
  EXPECT_EQ(body.sampling.logprobs, 3);
}

TEST(ChatBody, NamesTheFieldOfAMistake) {
  EXPECT_THAT(chat_mistake("{}"), StartsWith("messages: is required"));
  EXPECT_THAT(chat_mistake(R"({"messages": []})"), StartsWith("messages: "));
  EXPECT_THAT(chat_mistake(R"({"messages": ["x"]})"), StartsWith("messages[0]: "));
  EXPECT_THAT(chat_mistake(R"({"messages": [{"role": "user"}]})"),
              StartsWith("messages[0].content: is required"));
  EXPECT_THAT(chat_mistake(R"({"messages": [{"role": "boss", "content": "x"}]})"),
              StartsWith("messages[0].role: "));
  EXPECT_THAT(
      chat_mistake(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})"),
      StartsWith("messages[0].content[0].type: "));
  const std::string good = R"({"messages": [{"role": "user", "content": "x"}], )";
  EXPECT_THAT(chat_mistake(good + R"("tools": [{}]})"), StartsWith("tools: "));
  EXPECT_THAT(chat_mistake(good + R"("top_logprobs": 2})"), StartsWith("top_logprobs: "));
  EXPECT_THAT(chat_mistake(good + R"("response_format": {"type": "json_object"}})"),
              StartsWith("response_format.type: "));
}

TEST(RequestBody, MustBeAnObjectOfLimitedSize) {
  for (const std::string body : {"", "[]", "{", "{\"prompt\": \"\xff\"}", "nul", "{}{}"})
    EXPECT_EQ(http_error_of([&] { JsonFields{body}; }).code(), "invalid_json") << body;
  const std::string deep =
      "{\"prompt\": " + std::string(100000, '[') + std::string(100000, ']') + "}";
  EXPECT_THAT(http_error_of([&] { JsonFields{deep}; }).what(), HasSubstr("levels"));
  std::string many = "{\"prompt\": [[]";
  for (int i = 0; i < 70000; ++i) many += ",[]";
  EXPECT_THAT(http_error_of([&] { JsonFields{many + "]}"}; }).what(), HasSubstr("65536 lists"));
}

TEST(RequestBody, SurvivesDamage) {
  const std::vector<std::string> samples = {
      R"({"model": "m", "prompt": [[1, 2], [3]], "temperature": 0, "max_tokens": 1, "logprobs": 1,
          "seed": 1234, "echo": true})",
      R"({"prompt": ["a", "ä"], "stop": ["x"], "top_p": 0.5, "n": 2, "stream": true})",
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
          "stream": true, "stream_options": {"include_usage": true}, "logprobs": true})"};
  std::mt19937_64 random(3);
  const int rounds = fewer_under_sanitizers(30'000);
  int accepted = 0, refused = 0;
  for (int i = 0; i < rounds; ++i) {
    const std::string body = mutated_bytes(samples[random() % 3], samples[random() % 3], random);
    try {
      if (i % 2 == 0)
        parse_completion_body(body, kLimits);
      else
        parse_chat_body(body, kLimits);
      ++accepted;
    } catch (const HttpError& error) {
      ++refused;
      ASSERT_EQ(error.status(), 400);
      ASSERT_FALSE(error_reply(error).body.empty());
    }
  }
  EXPECT_GT(accepted, rounds / 100);
  EXPECT_GT(refused, rounds / 100);
}

}  // namespace
}  // namespace kintsugi
