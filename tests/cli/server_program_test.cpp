// The servers of the program, asked as clients and attackers do.
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "data/tokenizers/tokenizer.h"
#include "data/tokenizers/unicode.h"
#include "support/http_client.h"
#include "support/program_test.h"
#include "support/served_model.h"
#include "support/synthetic_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class ServerProgram : public ProgramTest {
 protected:
  void TearDown() override { stop(); }
  // Starts the program, which prints its address.
  void start(const std::string& arguments) {
    stop();
    const Outcome outcome = run_in_shell(
        "unset KINTSUGI_API_KEY KINTSUGI_DASHBOARD_TOKEN; rm -f server.txt\n\"$kintsugi\" " +
        arguments +
        " --port 0 > server.txt 2>&1 & echo $! > pid.txt\n"
        "while kill -0 $(cat pid.txt) && ! grep -q http:// server.txt; do sleep 0.02; done");
    const std::string log = content_of("server.txt");
    const std::size_t address = log.find("http://");
    ASSERT_NE(address, log.npos) << log << outcome.error;
    port_ = std::stoi(log.substr(log.find(':', address + 7) + 1));
    process_ = std::stoi(content_of("pid.txt"));
  }
  void stop() {
    if (process_ > 0) ::kill(std::exchange(process_, 0), SIGKILL);
  }
  // Of a request that is exactly these bytes.
  int status_of(const std::string& request) {
    RawClient client(port_);
    client.send(request);
    client.end_of_input();
    return parse_answer(client.receive_all()).status;
  }
  int status_for_host(const std::string& host, const std::string& headers = "") {
    return status_of("GET /api/runs HTTP/1.1\r\nHost: " + host + "\r\n" + headers +
                     "Connection: close\r\n\r\n");
  }

  int port_ = 0, process_ = 0;
};

// A page of evil.example can have this name resolved to the machine, but has no key.
TEST_F(ServerProgram, WithoutAKeyOnlyTheNamesOfTheMachineAreServed) {
  write_synthetic_run(directory_ / "runs/a", {});
  start("dashboard runs --host 0.0.0.0");
  const std::string port = ":" + std::to_string(port_);
  EXPECT_EQ(status_for_host("evil.example" + port), 403);
  EXPECT_EQ(status_for_host("127.0.0.1.evil.example"), 403);
  EXPECT_EQ(status_for_host("127.0.0.1" + port), 200);
  EXPECT_EQ(status_for_host("[::1]" + port), 200);
  EXPECT_EQ(status_for_host("localhost" + port), 200);
  char name[256] = {};
  ASSERT_EQ(::gethostname(name, sizeof(name) - 1), 0);
  EXPECT_EQ(status_for_host(name + port), 200);
  start("dashboard runs --host 0.0.0.0 --token secret");
  EXPECT_EQ(status_for_host("dashboard.example", "Authorization: Bearer secret\r\n"), 200);
  EXPECT_EQ(status_for_host("evil.example"), 401);
}

// Whoever may write into the folder of runs must not show other directories of the machine.
TEST_F(ServerProgram, ARunThatBecomesALinkIsNotFollowed) {
  write_synthetic_run(directory_ / "runs/a", {});
  write_synthetic_run(directory_ / "runs/sweep/b", {});
  for (const char* name : {"elsewhere/a", "elsewhere/sweep/b"}) {
    write_synthetic_run(directory_ / name, {.message = "TOP SECRET", .log = "TOP SECRET\n"});
    directory_.write(std::string(name) + "/metrics.prom",
                     "# TYPE kintsugi_loss gauge\nkintsugi_loss{run=\"TOP SECRET\"} 1\n");
    fs::create_directories(directory_ / name / "profiles");
    directory_.write(std::string(name) + "/profiles/TOP SECRET.json", "{}");
  }
  start("dashboard runs");
  const std::string paths[] = {"/api/runs",
                               "/api/run?id=a",
                               "/api/run?id=sweep/b",
                               "/api/series?id=a&keys=loss",
                               "/api/compare?id=a&id=sweep/b",
                               "/metrics"};
  for (const std::string& path : paths)
    EXPECT_THAT(http_get(port_, path).body, Not(HasSubstr("TOP SECRET"))) << path;
  EXPECT_EQ(http_get(port_, "/api/run?id=sweep/b").status, 200);
  const std::string before = http_get(port_, "/api/series?id=a&keys=loss").body;
  for (const char* name : {"a", "sweep"}) {
    fs::rename(directory_ / "runs" / name, directory_ / (std::string("moved-") + name));
    fs::create_directory_symlink(directory_ / "elsewhere" / name, directory_ / "runs" / name);
  }
  for (const std::string& path : paths)
    EXPECT_THAT(http_get(port_, path).body, Not(HasSubstr("TOP SECRET"))) << path;
  EXPECT_EQ(http_get(port_, "/api/profile?id=a&name=TOP%20SECRET.json").status, 404);
}

class ServedModel : public ServerProgram {
 protected:
  void SetUp() override { make_served_model(directory_ / "model"); }
  json complete(const json& body, int status = 200) {
    const HttpAnswer answer = http_post(port_, "/v1/completions", body.dump());
    EXPECT_EQ(answer.status, status) << answer.body;
    return json::parse(answer.body);
  }
};

// A proxy in front must not see another request than the server.
TEST_F(ServedModel, RefusesWhatCanBeReadInTwoWays) {
  start("serve --checkpoint model --threads 1");
  const auto post = [&](const std::string& headers, const std::string& text) {
    return status_of("POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers +
                     "Connection: close\r\n\r\n" + text);
  };
  const std::string length = "Content-Length: 17\r\n", plain = R"({"prompt": "abc"})";
  ASSERT_EQ(plain.size(), 17u);
  const std::string chunk = "11\r\n" + plain + "\r\n0\r\n\r\n";
  EXPECT_EQ(post(length, plain), 200);
  EXPECT_EQ(post("Transfer-Encoding: chunked\r\n", chunk), 200);
  for (const char* headers :
       {"Transfer-Encoding : chunked\r\nContent-Length: 17\r\n",
        "Content-Length: 17\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 17\r\nContent-Length: 17\r\n", "Content-Length: 17, 17\r\n",
        "Content-Length: +17\r\n", "Content-Length: 0x11\r\n", "Content-Length : 17\r\n",
        "X-Folded: a\r\n b\r\nContent-Length: 17\r\n",
        "X-Folded: a\r\n\tContent-Length: 1\r\nContent-Length: 17\r\n",
        "No colon\r\nContent-Length: 17\r\n", ": no name\r\nContent-Length: 17\r\n",
        "Bad Name: x\r\nContent-Length: 17\r\n", "Content-Length: 17\n",
        "X-Return: a\rb\r\nContent-Length: 17\r\n"})
    EXPECT_EQ(post(headers, plain), 400) << headers;
  for (const std::string size :
       {"0x11", "+11", " 11", "1 1", "-11", "", "11g", "1000000000000000011"})
    EXPECT_EQ(post("Transfer-Encoding: chunked\r\n", size + chunk.substr(2)) / 100, 4) << size;
  EXPECT_EQ(post("Transfer-Encoding: chunked\r\n", "0x11" + chunk.substr(2)), 400);
  EXPECT_EQ(post("Transfer-Encoding: chunked\r\n", "11\n" + chunk.substr(4)), 400);
}

TEST_F(ServedModel, RefusesFieldsThatItDoesNotKnow) {
  start("serve --checkpoint model --threads 1 --chat-template chatml");
  const json typo = complete({{"prompt", "abc"}, {"temprature", 0}}, 400);
  EXPECT_THAT(typo["error"]["message"].get<std::string>(),
              AllOf(HasSubstr("temprature"), HasSubstr("did you mean 'temperature'")));
  EXPECT_EQ(typo["error"]["code"], "unknown_field");
  const auto chat = [&](const json& fields) {
    json body = {{"messages", {{{"role", "user"}, {"content", "x"}, {"type", "text"}}}},
                 {"max_tokens", 1}};
    body.update(fields);
    return http_post(port_, "/v1/chat/completions", body.dump());
  };
  EXPECT_EQ(chat({{"user", "me"}, {"store", false}, {"metadata", {{"a", "b"}}}}).status, 200);
  EXPECT_EQ(chat({{"stream", true}, {"stream_options", {{"include_usage", true}}}}).status, 200);
  EXPECT_THAT(chat({{"stream", true}, {"stream_options", {{"usage", true}}}}).body,
              HasSubstr("stream_options.usage"));
  EXPECT_THAT(chat({{"max_token", 3}}).body, HasSubstr("did you mean 'max_tokens'"));
  EXPECT_THAT(chat({{"messages", {{{"role", "user"}, {"content", "x"}, {"nmae", "y"}}}}}).body,
              HasSubstr("messages[0].nmae"));
  EXPECT_EQ(http_post(port_, "/tokenize", R"({"prompt": "a", "add_special_token": false})").status,
            400);
}

// What lm-evaluation-harness sends.
TEST_F(ServedModel, KnowsTheFieldsOfTheHarness) {
  start("serve --checkpoint model --threads 1 --name m");
  complete({{"prompt", {{5, 6, 7}, {8, 9}}},
            {"model", "m"},
            {"max_tokens", 1},
            {"logprobs", 1},
            {"echo", true},
            {"temperature", 0},
            {"seed", 1234}});
  complete({{"prompt", "abc"},
            {"model", "m"},
            {"max_tokens", 2},
            {"temperature", 0},
            {"stop", {"\n", "END"}},
            {"seed", 1234}});
}

// Bytes that are no UTF-8 are one U+FFFD for each maximal beginning of a character.
TEST_F(ServedModel, OffsetsAreThoseOfTheReturnedText) {
  start("serve --checkpoint model --threads 1");
  const auto tokenizer = load_tokenizer((directory_ / "model").string());
  std::map<std::string, std::int32_t> bytes;  // the tokens of one byte
  for (std::int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    std::string text;
    tokenizer->decode(std::vector<std::int32_t>{id}, text);
    bytes.emplace(text, id);
  }
  const std::string given =
      "a\x80"
      "b\xE2"
      "c\xE2\x82\xAC"
      "d\xF0\x9F"
      "e\xFF\xC3\xA4"
      "f\x82\x82g\xED\xA0h";
  std::vector<std::int32_t> ids;
  for (const char byte : given) ids.push_back(bytes.at(std::string(1, byte)));
  const json reply = complete(
      {{"prompt", {ids}}, {"echo", true}, {"max_tokens", 0}, {"logprobs", 0}, {"temperature", 0}});
  const std::string text = reply["choices"][0]["text"];
  std::vector<std::string> characters;
  for (std::size_t at = 0; at < text.size(); at += characters.back().size())
    characters.push_back(text.substr(at, utf8_character_length(text.substr(at))));
  const json offsets = reply["choices"][0]["logprobs"]["text_offset"];
  ASSERT_EQ(offsets.size(), given.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto offset = offsets[i].get<std::size_t>();
    ASSERT_LT(offset, characters.size()) << i;
    if (given[i] >= 'a' && given[i] <= 'z') {
      EXPECT_EQ(characters[offset], given.substr(i, 1)) << i;
    }
  }
  EXPECT_EQ(offsets[6], offsets[5]) << "three bytes of one character";
}

// Which numbers are read of the logits depends on the other requests; what they are must not.
TEST_F(ServedModel, OtherRequestsDoNotChangeABit) {
  start("serve --checkpoint model --threads 1 --deterministic --precision fp64 --max-length 512");
  const json one = {{"prompt", "abc"}, {"max_tokens", 40}, {"temperature", 1.2},
                    {"logprobs", 1},   {"seed", 7},        {"top_p", 0.99}};
  const std::string alone = complete(one)["choices"].dump();
  std::atomic<bool> done = false;
  std::thread others([&] {
    for (int i = 0; !done && i < 1000; ++i)
      http_post(port_, "/v1/completions",
                json{{"prompt", {"x", "the river", "seven doors"}},
                     {"max_tokens", 60},
                     {"logprobs", 20},
                     {"seed", i}}
                    .dump());
  });
  for (int i = 0; i < 4; ++i) EXPECT_EQ(complete(one)["choices"].dump(), alone);
  done = true;
  others.join();
}

}  // namespace
}  // namespace kintsugi
