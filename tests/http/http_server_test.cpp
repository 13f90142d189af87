// The server over real sockets: limits, clients that leave or are slow, and shutting down.
#include "http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "backend/cpu/cpu_backend.h"
#include "comm/communicator.h"
#include "core/error.h"
#include "http/listener.h"
#include "serve/http/service.h"
#include "support/http_client.h"
#include "support/mutated_bytes.h"
#include "support/serve_load.h"
#include "support/served_model.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class HttpServerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = std::make_unique<TemporaryDirectory>();
    make_served_model(*model_ / "model");
  }
  static void TearDownTestSuite() { model_.reset(); }

  void start(HttpServerOptions options = {}, ServiceOptions service = {}) {
    engine_ = std::make_unique<InferenceEngine>(*backend_, alone_, *model_ / "model",
                                                InferenceOptions{.max_length = 8192});
    service.name = "tiny";
    service.limits.max_tokens = 8000;
    service_ = std::make_unique<HttpService>(*engine_, load_tokenizer((*model_ / "model").string()),
                                             PromptSettings{}, service);
    options.port = 0;
    server_ = std::make_unique<HttpServer>(*service_, options);
    port_ = server_->port();
  }
  static void wait_for(const std::function<bool()>& condition) {
    for (int i = 0; i < 60000 && !condition(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(condition());
  }
  HttpAnswer complete(const std::string& body = R"({"prompt": "a", "max_tokens": 2})") {
    return http_post(port_, "/v1/completions", body);
  }
  HttpAnswer complete_with(const std::string& headers) {
    return http_post(port_, "/v1/completions", R"({"prompt": "a", "max_tokens": 2})", headers);
  }
  int status_of(const std::string& request) {
    RawClient client(port_);
    client.send(request);
    return parse_answer(receive_reply(client)).status;
  }
  // Would take minutes.
  static std::string long_work(const std::string& more = "") {
    return http_text("POST", "/v1/completions",
                     R"({"prompt": "a", "n": 100, "max_tokens": 8000)" + more + "}");
  }
  // More than the buffers of a connection hold.
  static std::string endless() {
    return http_text(
        "POST", "/v1/completions",
        R"({"prompt": "a", "n": 3, "max_tokens": 3000, "logprobs": 20, "stream": true})");
  }

  static std::unique_ptr<TemporaryDirectory> model_;
  std::unique_ptr<Backend> backend_ = make_cpu_backend(1);
  LocalCommunicator alone_{"tensor", backend_.get()};
  std::unique_ptr<InferenceEngine> engine_;
  std::unique_ptr<HttpService> service_;
  std::unique_ptr<HttpServer> server_;
  int port_ = 0;
};
std::unique_ptr<TemporaryDirectory> HttpServerTest::model_;

TEST_F(HttpServerTest, Answers) {
  start();
  EXPECT_EQ(http_get(port_, "/health").status, 200);
  const HttpAnswer answer = complete();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(json::parse(answer.body)["usage"]["completion_tokens"], 2);
  EXPECT_THAT(http_get(port_, "/").headers,
              HasSubstr("Content-Security-Policy: default-src 'none'"));
  const HttpAnswer streamed = complete(R"({"prompt": "a", "max_tokens": 2, "stream": true})");
  EXPECT_THAT(streamed.headers, HasSubstr("text/event-stream"));
  EXPECT_TRUE(streamed.body.ends_with("data: [DONE]\n\n")) << streamed.body;
  EXPECT_EQ(http_get(port_, "/../../etc/passwd").status, 404);
}

TEST_F(HttpServerTest, KeepsAConnection) {
  start();
  RawClient client(port_);
  const std::string body = R"({"prompt": "a", "max_tokens": 1})";
  for (int i = 0; i < 20; ++i) {
    client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n" + body);
    EXPECT_THAT(client.receive_until("}\n"), HasSubstr("200 OK"));
  }
  EXPECT_EQ(server_->connections(), 1);
}

TEST_F(HttpServerTest, WaitsForABodyThatTheClientAnnounces) {
  start();
  RawClient client(port_);
  const std::string body = R"({"prompt": "a", "max_tokens": 1})";
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: "
      "100-continue\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_THAT(client.receive_until("\r\n\r\n"), HasSubstr("100 Continue"));
  client.send(body);
  EXPECT_EQ(parse_answer(client.receive_all()).status, 200);
}

TEST_F(HttpServerTest, LimitsBodies) {
  start({.connection = {.max_body = 1000}});
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n";
  EXPECT_EQ(complete("{\"prompt\": \"" + std::string(1000, 'a') + "\"}").status, 413);
  EXPECT_EQ(status_of(head + "Content-Length: 99999999999999999999\r\n\r\n"), 413);
  EXPECT_EQ(status_of(head + "Transfer-Encoding: chunked\r\n\r\n400\r\n" + std::string(1024, ' ') +
                      "\r\n0\r\n\r\n"),
            413);
  EXPECT_EQ(status_of(head + "\r\n"), 411);
  EXPECT_EQ(status_of(head + "Content-Length: 2\r\nContent-Encoding: gzip\r\n\r\n{}"), 415);
  EXPECT_EQ(status_of(head + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}"), 400);
  EXPECT_EQ(status_of(head + "Content-Length: -2\r\n\r\n{}"), 400);
  EXPECT_EQ(status_of("PUT /v1/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"), 405);
  EXPECT_EQ(status_of(head + "Transfer-Encoding: gzip\r\n\r\n{}"), 501);
  const HttpAnswer form = complete_with("Content-Type: multipart/form-data; boundary=x\r\n");
  EXPECT_EQ(form.status, 415);
  EXPECT_THAT(form.headers, testing::Not(HasSubstr("EXCEPTION")));
  EXPECT_EQ(complete().status, 200);
}

TEST_F(HttpServerTest, ReadsChunks) {
  start();
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
      "Transfer-Encoding: Chunked\r\n\r\n";
  EXPECT_EQ(status_of(head + "a;name=value\r\n{\"prompt\":\r\n0E\r\n \"a\",\"n\": 1   \r\n" +
                      "1\r\n}\r\n0\r\nX-Sum: 1\r\n\r\n"),
            200);
  for (const char* chunks :
       {"0x1\r\n{\r\n0\r\n\r\n", "+1\r\n{\r\n0\r\n\r\n", " 1\r\n{\r\n0\r\n\r\n", "\r\n{",
        "1\r\n{}\r\n0\r\n\r\n", "1\n{\r\n0\r\n\r\n", "-1\r\n", "0\r\nX : 1\r\n\r\n"})
    EXPECT_EQ(status_of(head + chunks), 400) << chunks;
  EXPECT_EQ(status_of(head + "7fffffffffffffff\r\n"), 413);
}

// A proxy in front of the server and the server itself must see the same requests.
TEST_F(HttpServerTest, RefusesWhatAnotherReaderCouldUnderstandDifferently) {
  start();
  const std::string end = "Connection: close\r\n\r\n", first = "GET /health HTTP/1.1\r\n",
                    post = "POST /v1/completions HTTP/1.1\r\n";
  EXPECT_EQ(status_of(first + "x-EMPTY:\r\nX-Tab:\ta\tb\t\r\n" + end), 200);
  EXPECT_EQ(status_of("\r\nGET /he%61lth?a=%2b+&&b HTTP/1.0\r\n\r\n"), 200);
  for (const std::string header :
       {"Transfer-Encoding : chunked\r\nContent-Length: 2", "X: a\r\n folded", "X : a", "X", ": a",
        "X: a\nY: b", "X: a\rb", "X: \x01", "Host: a\r\nHost: a"})
    EXPECT_EQ(status_of(first + header + "\r\n" + end), 400) << header;
  EXPECT_EQ(status_of(first + std::string("X: a\0b\r\n", 9) + end), 400);
  for (const std::string header :
       {"Content-Length: +2", "Content-Length: 0x2", "Content-Length: 2, 2",
        "Content-Length:", "Content-Length: 2\r\nContent-Length: 2",
        "Content-Length: 2\r\nTransfer-Encoding: chunked"})
    EXPECT_EQ(status_of(post + header + "\r\n" + end + "{}"), 400) << header;
  EXPECT_EQ(
      status_of("POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
      400);
  for (const std::string line :
       {"GET  /health HTTP/1.1", "GET /health", "GET /he alth HTTP/1.1", " GET /health HTTP/1.1",
        "GET http://localhost/health HTTP/1.1", "GET /health HTTP/1.1 ", "GET /%4 HTTP/1.1",
        "GET /%zz HTTP/1.1", "G(T /health HTTP/1.1", "\r\n\r\nGET /health HTTP/1.1"})
    EXPECT_EQ(status_of(line + "\r\n" + end), 400) << line;
  EXPECT_EQ(status_of("GET /health HTTP/1.1\nHost: localhost\n\n"), 400);
  EXPECT_EQ(status_of("GET /health HTTP/2.0\r\n\r\n"), 505);
  EXPECT_EQ(status_of(post + "Expect: more\r\nContent-Length: 2\r\n" + end), 417);
}

TEST_F(HttpServerTest, AnswersClientsThatSendSeveralRequestsAtOnce) {
  start();
  RawClient client(port_);
  client.send("HEAD /health HTTP/1.1\r\n\r\nGET /nothing HTTP/1.1\r\n\r\n" +
              http_text("GET", "/health"));
  const std::string text = client.receive_all();
  const auto at = [&](const char* part, std::size_t from) { return text.find(part, from); };
  const std::size_t head = at("200 OK", 0), second = at("404 Not Found", head);
  ASSERT_NE(second, text.npos) << text;
  // The reply to HEAD has no body.
  EXPECT_EQ(at("\r\n\r\nHTTP/1.1 404", head), second - 13) << text;
  EXPECT_NE(at("200 OK", second), text.npos) << text;
}

// HTTP/1.0 knows no chunks: the end of the connection ends the stream.
TEST_F(HttpServerTest, StreamsToAnOldClient) {
  start();
  const std::string body = R"({"prompt": "a", "max_tokens": 2, "stream": true})";
  RawClient client(port_);
  client.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  const HttpAnswer answer = parse_answer(client.receive_all());
  EXPECT_EQ(answer.headers.find("Transfer-Encoding"), std::string::npos);
  EXPECT_TRUE(answer.body.starts_with("data: ")) << answer.body;
  EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n")) << answer.body;
}

TEST_F(HttpServerTest, AnswersAsAWholeWhateverRangeIsAskedFor) {
  start();
  const std::string whole = http_get(port_, "/v1/models").body;
  std::string many = "Range: bytes=0-";
  for (int i = 0; i < 1000; ++i) many += ",0-";
  for (const std::string& range : {std::string("Range: bytes=1-2"), many}) {
    const HttpAnswer answer = http_get(port_, "/v1/models", range + "\r\n");
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, whole);
  }
}

TEST_F(HttpServerTest, IsNotReachedByAnotherNameOfThisMachine) {
  start();
  const auto status = [&](const std::string& host) {
    return status_of("GET /health HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n");
  };
  for (const char* host :
       {"localhost", "LocalHost:8000", "127.0.0.1", "127.1.2.3:80", "[::1]:8000"})
    EXPECT_EQ(status(host), 200) << host;
  for (const char* host :
       {"evil.example:8000", "127.evil.example", "localhost.evil.example", "[::1"})
    EXPECT_EQ(status(host), 403) << host;
  EXPECT_EQ(http_get(port_, "/health", "Origin: http://evil.example\r\n").status, 403);
}

TEST_F(HttpServerTest, GivesUpOnHalfARequest) {
  start({.connection = {.header_timeout_s = 0.2, .body_timeout_s = 0.2, .idle_timeout_s = 0.2}});
  RawClient silent(port_), header(port_), body(port_), endless_header(port_);
  header.send("POST /v1/comple");
  body.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{\"pro");
  endless_header.send("GET / HTTP/1.1\r\n" + std::string(100, 'a'));
  EXPECT_EQ(complete().status, 200) << "others are served";
  EXPECT_EQ(parse_answer(body.receive_all()).status, 408);
  for (RawClient* client : {&silent, &header, &endless_header}) client->receive_all();
  wait_for([&] { return server_->connections() == 0; });
}

TEST_F(HttpServerTest, LimitsHeaders) {
  start();
  RawClient client(port_);
  client.send("GET /health HTTP/1.1\r\n");
  for (int i = 0;
       i < 2000 && client.send("X-" + std::to_string(i) + ": " + std::string(100, 'a') + "\r\n");
       ++i) {
  }
  client.send("\r\n");
  EXPECT_NE(parse_answer(client.receive_all()).status, 200);
  EXPECT_EQ(http_get(port_, "/health").status, 200);
}

TEST_F(HttpServerTest, FreesTheSlotOfAClientThatLeaves) {
  start();
  {
    RawClient streaming(port_), waiting(port_);
    streaming.send(long_work(R"(, "stream": true)"));
    streaming.receive_until("data: ");
    waiting.send(long_work());
    wait_for([&] { return service_->open_sequences() > 100; });
  }
  wait_for([&] { return service_->open_sequences() == 0 && server_->connections() == 0; });
}

TEST_F(HttpServerTest, DisconnectsAClientThatDoesNotRead) {
  start({.connection = {.write_timeout_s = 0.3}});
  RawClient client(port_);
  client.send(endless());
  wait_for([&] { return service_->open_sequences() == 3; });
  wait_for([&] { return service_->open_sequences() == 0 && server_->connections() == 0; });
}

// It makes progress all the time, but a whole reply is limited too.
TEST_F(HttpServerTest, DisconnectsAClientThatReadsForever) {
  start({.connection = {.reply_timeout_s = 0.3}});
  RawClient client(port_);
  client.send(endless());
  std::string text;
  for (std::string part = client.receive(64); !part.empty(); part = client.receive(64)) {
    text += part;
    if (service_->open_sequences() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_THAT(text, testing::Not(HasSubstr("[DONE]")));
  wait_for([&] { return service_->open_sequences() == 0 && server_->connections() == 0; });
}

TEST_F(HttpServerTest, LimitsConnectionsAndTheQueue) {
  start({.max_connections = 2}, {.max_queue = 0});
  RawClient first(port_), second(port_);
  first.send(long_work());
  wait_for([&] { return server_->connections() == 2 && service_->open_sequences() > 0; });
  RawClient third(port_);
  const HttpAnswer refused = parse_answer(third.receive_all());
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(json::parse(refused.body)["error"]["code"], "too_many_connections");
  second.send(http_text("POST", "/v1/completions", R"({"prompt": "a", "n": 17})"));
  const HttpAnswer full = parse_answer(second.receive_all());
  EXPECT_EQ(full.status, 429);
  EXPECT_THAT(full.headers, HasSubstr("Retry-After: "));
}

TEST_F(HttpServerTest, FinishesWhatRunsBeforeItEnds) {
  start();
  RawClient client(port_);
  client.send(endless());  // cannot end before it is read
  std::string text = client.receive_until("data: ");
  bool finished = false;
  std::thread ending([&] { finished = server_->shutdown(60); });
  wait_for([&] { return http_get(port_, "/health").status == 503; });
  EXPECT_EQ(complete().status, 503);
  text += client.receive_all();
  ending.join();
  EXPECT_TRUE(finished);
  EXPECT_THAT(text, HasSubstr("data: [DONE]"));
  EXPECT_FALSE(RawClient(port_).connected());
}

TEST_F(HttpServerTest, EndsWhatTakesLongerThanTheShutdownMay) {
  start();
  RawClient client(port_);
  client.send(endless());
  client.receive_until("data: ");
  EXPECT_FALSE(server_->shutdown(0.05));
  EXPECT_EQ(server_->connections(), 0);
  wait_for([&] { return service_->open_sequences() == 0; });
}

TEST_F(HttpServerTest, SurvivesDamagedRequests) {
  start({.connection = {.header_timeout_s = 1, .body_timeout_s = 1}});
  const std::string sample =
      http_text("POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 1})",
                "Content-Type: application/json\r\nExpect: 100-continue\r\n");
  const std::string other =
      "GET /metrics HTTP/1.1\r\nHost: localhost\r\nRange: bytes=1-2\r\nTransfer-Encoding: "
      "chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
  std::mt19937_64 random(11);
  for (int i = 0; i < 3000; ++i) {
    RawClient client(port_);
    client.send(mutated_bytes(i % 2 == 0 ? sample : other, other, random));
    client.end_of_input();
    if (i % 3 != 0) client.receive_all();
  }
  wait_for([&] { return server_->connections() == 0 && service_->open_sequences() == 0; });
  EXPECT_EQ(complete().status, 200);
}

TEST_F(HttpServerTest, ServesManyClientsOfAllKinds) {
  start({.connection = {.header_timeout_s = 1, .body_timeout_s = 1}});
  const LoadReport report = ServeLoad({.port = port_, .clients = 24, .time_s = 1}).run();
  EXPECT_EQ(report.unanswered, 0);
  EXPECT_GT(report.counts.at("complete 200"), 0);
  wait_for([&] { return server_->connections() == 0 && service_->open_sequences() == 0; });
}

TEST(HttpListener, NamesAPortThatIsInUse) {
  HttpListener listener("127.0.0.1", 0);
  try {
    HttpListener second("127.0.0.1", listener.port());
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("is in use"));
  }
  EXPECT_TRUE(listener.is_local());
  EXPECT_FALSE(HttpListener("0.0.0.0", 0).is_local());
  EXPECT_THROW(HttpListener("no.such.host.invalid", 0), UserError);
}

}  // namespace
}  // namespace kintsugi
