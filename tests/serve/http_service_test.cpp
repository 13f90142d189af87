// The server's answers, without sockets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "backend/cpu/cpu_backend.h"
#include "comm/communicator.h"
#include "core/error.h"
#include "serve/http/service.h"
#include "support/prometheus_parser.h"
#include "support/served_model.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

class HttpServiceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    models_ = std::make_unique<TemporaryDirectory>();
    make_served_model(*models_ / "random");
    make_served_model(*models_ / "uniform", true);
  }
  static void TearDownTestSuite() { models_.reset(); }

  void start(ServiceOptions options = {}, const std::string& model = "random") {
    service_.reset();
    engine_ = std::make_unique<InferenceEngine>(*backend_, alone_, *models_ / model,
                                                InferenceOptions{.max_length = 8192});
    options.name = "tiny";
    service_ = std::make_unique<HttpService>(*engine_, load_tokenizer((*models_ / model).string()),
                                             PromptSettings{}, options);
  }
  static ServiceOptions with_chat() { return {.format = &find_chat_format("chatml")}; }

  HttpReply ask(const std::string& path, const std::string& body,
                const std::string& method = "POST") {
    return service_->handle({.method = method, .path = path, .body = body},
                            [this] { return gone_; });
  }
  json post(const std::string& path, const json& body, int status = 200) {
    const HttpReply reply = ask(path, body.dump());
    EXPECT_EQ(reply.status, status) << reply.body;
    return json::parse(reply.body);
  }
  json complete(const json& body, int status = 200) {
    return post("/v1/completions", body, status);
  }
  std::vector<json> stream(const std::string& path, const json& body) {
    HttpReply reply = ask(path, body.dump());
    EXPECT_EQ(reply.content_type, "text/event-stream") << reply.body;
    std::string text;
    reply.stream([&](std::string_view piece) {
      text += piece;
      return true;
    });
    std::vector<json> events;
    EXPECT_TRUE(text.ends_with("data: [DONE]\n\n")) << text;
    for (std::size_t at = 0; at + 14 < text.size();) {
      const std::size_t end = text.find("\n\n", at);
      events.push_back(json::parse(text.substr(at + 6, end - at - 6)));
      at = end + 2;
    }
    return events;
  }
  void wait_until_free() {
    for (int i = 0; i < 60000 && service_->open_sequences() > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(service_->open_sequences(), 0);
  }

  static std::unique_ptr<TemporaryDirectory> models_;
  std::unique_ptr<Backend> backend_ = make_cpu_backend(1);
  LocalCommunicator alone_{"tensor", backend_.get()};
  std::unique_ptr<InferenceEngine> engine_;
  std::unique_ptr<HttpService> service_;
  bool gone_ = false;
};
std::unique_ptr<TemporaryDirectory> HttpServiceTest::models_;

TEST_F(HttpServiceTest, ScoresAsEvaluationClientsExpect) {
  start({}, "uniform");
  const json reply = complete({{"prompt", {{5, 6, 7}, {8, 9, 10, 11, 12}}},
                               {"temperature", 0},
                               {"max_tokens", 1},
                               {"logprobs", 1},
                               {"seed", 1234},
                               {"echo", true}});
  ASSERT_EQ(reply["choices"].size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    const json& choice = reply["choices"][i];
    const json& l = choice["logprobs"];
    const std::size_t length = i == 0 ? 3 : 5;
    EXPECT_EQ(choice["index"], i);
    for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
      EXPECT_EQ(l[list].size(), length + 1) << list;
    EXPECT_TRUE(l["token_logprobs"][0].is_null() && l["top_logprobs"][0].is_null());
    for (std::size_t t = 1; t <= length; ++t) {
      const double value = l["token_logprobs"][t];
      EXPECT_NEAR(value, -std::log(kServedVocabulary), 1e-6);
      EXPECT_EQ(l["top_logprobs"][t].at(l["tokens"][t].get<std::string>()), value);
    }
  }
  EXPECT_EQ(reply["usage"],
            (json{{"prompt_tokens", 8}, {"completion_tokens", 2}, {"total_tokens", 10}}));
  EXPECT_EQ(reply["object"], "text_completion");
  EXPECT_EQ(reply["model"], "tiny");
}

TEST_F(HttpServiceTest, OnlyScoresWithoutTokens) {
  start({}, "uniform");
  const json reply =
      complete({{"prompt", "some text"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 0}});
  const json& choice = reply["choices"][0];
  EXPECT_EQ(choice["text"], "some text");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), reply["usage"]["prompt_tokens"]);
  EXPECT_EQ(reply["usage"]["completion_tokens"], 0);
}

TEST_F(HttpServiceTest, CountsOffsetsInCharacters) {
  start();
  const std::string prompt = "Grüße 東京 🙂 ok";
  const json reply =
      complete({{"prompt", prompt}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 0}});
  const json& l = reply["choices"][0]["logprobs"];
  std::string bytes;  // in front of the token
  for (std::size_t i = 0; i < l["tokens"].size(); ++i) {
    // Complete characters only: lead bytes, less one if the last character is not complete.
    std::int64_t characters = 0;
    for (const char c : bytes) characters += (c & 0xC0) != 0x80;
    if (complete_characters(bytes) < bytes.size()) --characters;
    EXPECT_EQ(l["text_offset"][i], characters) << i;
    const std::string token = l["tokens"][i];
    if (!token.starts_with("bytes:")) bytes += token;
    for (std::size_t at = 6; token.starts_with("bytes:") && at < token.size(); at += 4)
      bytes += static_cast<char>(std::stoi(token.substr(at + 2, 2), nullptr, 16));
  }
  EXPECT_EQ(bytes, prompt);
}

TEST_F(HttpServiceTest, BatchesChangeNothing) {
  start();
  const json body = {{"temperature", 0}, {"max_tokens", 6}, {"logprobs", 2}, {"echo", true}};
  json all = body;
  all["prompt"] = {"a", "The quick brown fox", "12"};
  const json together = complete(all);
  for (std::size_t i = 0; i < 3; ++i) {
    json one = body;
    one["prompt"] = all["prompt"][i];
    const json alone = complete(one);
    EXPECT_EQ(together["choices"][i]["text"], alone["choices"][0]["text"]);
    const json &x = together["choices"][i]["logprobs"]["token_logprobs"],
               &y = alone["choices"][0]["logprobs"]["token_logprobs"];
    ASSERT_EQ(x.size(), y.size());
    for (std::size_t t = 1; t < x.size(); ++t)
      EXPECT_NEAR(x[t].get<double>(), y[t].get<double>(), 1e-6);
  }
}

TEST_F(HttpServiceTest, TextsOfOnePromptHaveSeedsInARow) {
  start();
  const json three = complete({{"prompt", "a"}, {"n", 3}, {"seed", 7}, {"max_tokens", 12}});
  for (std::size_t k = 0; k < 3; ++k) {
    const json one = complete({{"prompt", "a"}, {"seed", 7 + k}, {"max_tokens", 12}});
    EXPECT_EQ(three["choices"][k]["text"], one["choices"][0]["text"]);
  }
  EXPECT_NE(three["choices"][0]["text"], three["choices"][1]["text"]);
}

TEST_F(HttpServiceTest, StreamsTheSame) {
  start();
  const json body = {{"prompt", {"ab", "cd ef"}},
                     {"seed", 3},
                     {"max_tokens", 20},
                     {"logprobs", 1},
                     {"echo", true}};
  const json whole = complete(body);
  json streamed = body;
  streamed["stream"] = true;
  streamed["stream_options"] = {{"include_usage", true}};
  const std::vector<json> events = stream("/v1/completions", streamed);
  for (std::size_t i = 0; i < 2; ++i) {
    std::string text;
    json tokens = json::array(), values = json::array(), offsets = json::array();
    std::vector<json> reasons;
    for (const json& event : events)
      for (const json& choice : event["choices"]) {
        if (choice["index"] != i) continue;
        text += choice["text"];
        const json& l = choice["logprobs"];
        tokens.insert(tokens.end(), l["tokens"].begin(), l["tokens"].end());
        values.insert(values.end(), l["token_logprobs"].begin(), l["token_logprobs"].end());
        offsets.insert(offsets.end(), l["text_offset"].begin(), l["text_offset"].end());
        if (!choice["finish_reason"].is_null()) reasons.push_back(choice["finish_reason"]);
      }
    const json& choice = whole["choices"][i];
    EXPECT_EQ(choice["text"], text);
    EXPECT_EQ(tokens, choice["logprobs"]["tokens"]);
    EXPECT_EQ(offsets, choice["logprobs"]["text_offset"]);
    EXPECT_EQ(values.size(), choice["logprobs"]["token_logprobs"].size());
    EXPECT_THAT(reasons, ElementsAre(choice["finish_reason"]));
  }
  EXPECT_EQ(events.back()["usage"], whole["usage"]);
  EXPECT_TRUE(events.front()["usage"].is_null());
}

TEST_F(HttpServiceTest, EndsBeforeAStopStringAndAtAStopToken) {
  start();
  const json body = {{"prompt", "abc"}, {"temperature", 0}, {"max_tokens", 12}};
  const std::string text = complete(body)["choices"][0]["text"];
  json stopped = body;
  const std::string stop = text.substr(text.size() / 2, 2);
  stopped["stop"] = {stop};
  const json choice = complete(stopped)["choices"][0];
  EXPECT_EQ(choice["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(choice["finish_reason"], "stop");
}

// Clients drop the last entry, which is that of the generated token, so it must be there.
TEST_F(HttpServiceTest, ListsTheEndOfATextThatEndsAtOnce) {
  start();
  json body = {{"temperature", 0}, {"max_tokens", 1}, {"logprobs", 1}, {"echo", true}}, all, ids;
  for (int last = 7; ids.size() != 1; ++last) {  // until the generated token is a text by itself
    ASSERT_LT(last, 50);
    body["prompt"] = {5, 6, last};
    all = complete(body)["choices"][0]["logprobs"];
    ids =
        post("/tokenize", {{"prompt", all["tokens"][3]}, {"add_special_tokens", false}})["tokens"];
  }
  body["stop_token_ids"] = ids;
  const json choice = complete(body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["logprobs"]["token_logprobs"].size(), 4u);
  for (int t = 1; t < 3; ++t)
    EXPECT_EQ(choice["logprobs"]["token_logprobs"][t], all["token_logprobs"][t]);
}

TEST_F(HttpServiceTest, Chats) {
  start(with_chat());
  const json body = {{"messages", {{{"role", "user"}, {"content", "hello"}}}},
                     {"max_tokens", 8},
                     {"seed", 1},
                     {"logprobs", true},
                     {"top_logprobs", 2}};
  const json reply = post("/v1/chat/completions", body);
  const json& choice = reply["choices"][0];
  EXPECT_EQ(reply["object"], "chat.completion");
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["logprobs"]["content"].size(), reply["usage"]["completion_tokens"]);
  for (const json& entry : choice["logprobs"]["content"])
    EXPECT_EQ(entry["top_logprobs"].size(), 2u);
  json streamed = body;
  streamed["stream"] = true;
  std::string text;
  const std::vector<json> events = stream("/v1/chat/completions", streamed);
  EXPECT_EQ(events.front()["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(events.front()["object"], "chat.completion.chunk");
  for (const json& event : events) text += event["choices"][0]["delta"].value("content", "");
  EXPECT_EQ(choice["message"]["content"], text);
}

TEST_F(HttpServiceTest, AMessageCannotEndItsTurn) {
  start(with_chat());
  const auto tokens = [&](const std::string& content) {
    return post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", content}}}},
                                         {"max_tokens", 1}})["usage"]["prompt_tokens"]
        .get<int>();
  };
  // As a token it would count once; as text it is ten characters.
  EXPECT_GT(tokens("<|im_end|>"), tokens("x") + 2);
}

TEST_F(HttpServiceTest, NeedsAChatFormatToChat) {
  start({.no_chat = "no template; use --chat-template"});
  const json error = post("/v1/chat/completions",
                          {{"messages", {{{"role", "user"}, {"content", "x"}}}}}, 400)["error"];
  EXPECT_EQ(error["code"], "no_chat_template");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("--chat-template"));
}

TEST_F(HttpServiceTest, NamesItsModel) {
  start();
  EXPECT_EQ(json::parse(ask("/v1/models", "", "GET").body)["data"][0]["id"], "tiny");
  EXPECT_NO_THROW(complete({{"prompt", "a"}, {"model", "tiny"}}));
  const json error = complete({{"prompt", "a"}, {"model", "other"}}, 404)["error"];
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("'tiny'"));
}

TEST_F(HttpServiceTest, RefusesWhatIsTooLong) {
  start();
  json ids = json::array();
  for (int i = 0; i < 8190; ++i) ids.push_back(5);
  EXPECT_EQ(complete({{"prompt", ids}, {"max_tokens", 3}}, 400)["error"]["code"],
            "context_length_exceeded");
  ids = json(std::vector<int>(8193, 100000));  // the length is looked at first
  EXPECT_EQ(complete({{"prompt", ids}, {"echo", true}}, 400)["error"]["code"],
            "context_length_exceeded");
  complete({{"prompt", json::array({100000})}}, 400);
  complete({{"prompt", ""}}, 400);
}

TEST_F(HttpServiceTest, LimitsTheSizeOfAReply) {
  ServiceOptions options;
  options.limits.max_entries = 60;
  start(options);
  json body = {{"prompt", {1, 2, 3}}, {"n", 2}, {"max_tokens", 7}, {"logprobs", 2}};
  complete(body);       // 2 x 7 x 3 = 42
  body["echo"] = true;  // 2 x (3 + 7) x 3 = 60
  complete(body);
  body["max_tokens"] = 8;
  const json error = complete(body, 400)["error"];
  EXPECT_EQ(error["code"], "reply_too_large");
  for (const char* field : {"66", "60", "max_tokens", "n)", "logprobs", "echo"})
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(field));
}

// What waits for a slow client is limited for each text, not for all together.
TEST_F(HttpServiceTest, KeepsManyTextsForAClientThatReadsLate) {
  start();
  const HttpReply reply =
      ask("/v1/completions", R"({"prompt": "a", "n": 64, "max_tokens": 280, "stream": true})");
  wait_until_free();
  std::string last;
  int pieces = 0;
  reply.stream([&](std::string_view piece) {
    last = piece;
    ++pieces;
    return true;
  });
  EXPECT_GT(pieces, 16384);
  EXPECT_EQ(last, "data: [DONE]\n\n");
}

TEST_F(HttpServiceTest, SurvivesAnErrorInAStream) {
  start();
  const HttpReply reply =
      ask("/v1/completions", R"({"prompt": "a", "max_tokens": 4000, "stream": true})");
  std::string text;
  bool failed = false;
  EXPECT_NO_THROW(reply.stream([&](std::string_view piece) {
    if (!std::exchange(failed, true)) throw std::runtime_error("no memory left");
    text += piece;
    return true;
  }));
  EXPECT_THAT(text, HasSubstr("internal_error"));
  EXPECT_THAT(text, HasSubstr("no memory left"));
  wait_until_free();
}

TEST_F(HttpServiceTest, ConvertsTokens) {
  start();
  const json reply =
      post("/tokenize", {{"prompt", "<|im_start|>ä"}, {"add_special_tokens", false}});
  EXPECT_EQ(reply["tokens"][0], 801);
  EXPECT_EQ(post("/detokenize", {{"tokens", reply["tokens"]}})["prompt"], "<|im_start|>ä");
  post("/detokenize", {{"tokens", {805}}}, 400);
  EXPECT_EQ(json::parse(ask("/tokenizer_info", "", "GET").body)["eos_token"], "<|endoftext|>");
}

TEST_F(HttpServiceTest, ChecksKeyMethodPathAndSite) {
  start({.api_key = "secret"});
  HttpRequest request{.method = "GET", .path = "/v1/models"};
  const auto status = [&] { return service_->handle(request, [] { return false; }).status; };
  EXPECT_EQ(status(), 401);
  for (const char* wrong :
       {"secret", "Bearer ", "Bearer secre", "Bearer secrets", "Bearer Secret"}) {
    request.authorization = wrong;
    EXPECT_EQ(status(), 401) << wrong;
  }
  request.authorization = "Bearer secret";
  EXPECT_EQ(status(), 200);
  request.method = "POST";
  EXPECT_EQ(status(), 405);
  request = {.method = "GET", .path = "/health"};
  EXPECT_EQ(status(), 200) << "without a key";
  request.origin = "http://elsewhere.example";
  request.host = "127.0.0.1:8000";
  EXPECT_EQ(status(), 403);
  request.origin = "http://127.0.0.1:8000";
  EXPECT_EQ(status(), 200);
  request.path = "/etc/passwd";
  EXPECT_EQ(status(), 404);
}

TEST_F(HttpServiceTest, AllowsOtherSitesIfTold) {
  start({.cors_origin = "https://a.example"});
  HttpRequest request{
      .method = "OPTIONS", .path = "/v1/completions", .origin = "https://a.example"};
  const HttpReply reply = service_->handle(request, [] { return false; });
  EXPECT_EQ(reply.status, 204);
  EXPECT_THAT(reply.headers, testing::Contains(std::pair<std::string, std::string>(
                                 "Access-Control-Allow-Origin", "https://a.example")));
}

// 100 texts of 8000 tokens would take minutes.
TEST_F(HttpServiceTest, EndsWhatTakesTooLong) {
  start({.limits = {.max_tokens = 8000}, .request_timeout_s = 0.05});
  const json body = {{"prompt", "a"}, {"max_tokens", 8000}, {"n", 100}};
  EXPECT_EQ(complete(body, 504)["error"]["code"], "timeout");
  wait_until_free();
}

TEST_F(HttpServiceTest, EndsWhatNobodyWaitsFor) {
  start({.limits = {.max_tokens = 8000}});
  gone_ = true;
  json body = {{"prompt", "a"}, {"max_tokens", 8000}, {"n", 100}};
  complete(body, 499);
  wait_until_free();
  body["stream"] = true;
  HttpReply reply = ask("/v1/completions", body.dump());
  reply.stream([](std::string_view) { return false; });
  reply = {};
  wait_until_free();
}

TEST_F(HttpServiceTest, RefusesWorkWhileItShutsDown) {
  start();
  service_->drain();
  EXPECT_EQ(ask("/health", "", "GET").status, 503);
  complete({{"prompt", "a"}}, 503);
}

TEST_F(HttpServiceTest, CountsWhatItDoes) {
  start();
  complete({{"prompt", "a"}, {"max_tokens", 3}});
  complete({{"prompt", 1}}, 400);
  const PrometheusRead read = PrometheusParser::parse(ask("/metrics", "", "GET").body);
  EXPECT_EQ(read.at("kintsugi_requests_total", "code=200,route=/v1/completions"), 1);
  EXPECT_EQ(read.at("kintsugi_requests_total", "code=400,route=/v1/completions"), 1);
  EXPECT_EQ(read.at("kintsugi_sequences_open", ""), 0);
  EXPECT_EQ(read.at("kintsugi_request_seconds_count", ""), 2);
  EXPECT_EQ(read.at("kintsugi_time_to_first_token_seconds_bucket", "le=+Inf"), 1);
}

TEST_F(HttpServiceTest, ThePageLoadsNothingFromElsewhere) {
  start();
  const HttpReply reply = ask("/", "", "GET");
  EXPECT_EQ(reply.body.find("http:"), reply.body.npos);
  EXPECT_EQ(reply.body.find("https:"), reply.body.npos);
  EXPECT_EQ(reply.body.find("innerHTML"), reply.body.npos);
  EXPECT_EQ(reply.body.find("NONCE"), reply.body.npos);
  EXPECT_THAT(reply.headers[0].second, HasSubstr("default-src 'none'"));
  EXPECT_NE(ask("/", "", "GET").headers[0].second, reply.headers[0].second) << "a new nonce";
}

TEST(SequenceSlots, AreTakenTogether) {
  SequenceSlots slots(10);
  EXPECT_TRUE(slots.take(12)) << "a large request runs when it is alone";
  EXPECT_FALSE(slots.take(1));
  slots.release(12);
  EXPECT_TRUE(slots.take(8));
  EXPECT_FALSE(slots.take(3));
  EXPECT_TRUE(slots.take(2));
  EXPECT_EQ(slots.used(), 10);
}

}  // namespace
}  // namespace kintsugi
