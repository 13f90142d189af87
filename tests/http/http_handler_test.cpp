// What every service checks before it answers.
#include "http/http_handler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;

class EchoHandler : public HttpHandler {
 public:
  using HttpHandler::HttpHandler;
  HttpReply handle(const HttpRequest& request, std::function<bool()>) override {
    return reply_to(request, [&]() -> HttpReply {
      if (request.body == "mistake") user_error("a mistake");
      if (request.body == "failure") throw std::runtime_error("a failure");
      return {.body = "answer"};
    });
  }
};

class HttpHandlerTest : public testing::Test {
 protected:
  int status(HttpRequest request) {
    return handler_.handle(request, [] { return false; }).status;
  }

  EchoHandler handler_{HttpAccess{
      .routes = {{"GET", "/", true}, {"POST", "/work"}}, .key = "key", .key_in_query = true}};
  HttpRequest work_{.method = "POST", .path = "/work", .authorization = "Bearer key"};
};

TEST_F(HttpHandlerTest, ChecksPathMethodAndKey) {
  EXPECT_EQ(status(work_), 200);
  EXPECT_EQ(status({.method = "GET", .path = "/"}), 200) << "public";
  EXPECT_EQ(status({.method = "HEAD", .path = "/"}), 200);
  EXPECT_EQ(status({.method = "POST", .path = "/"}), 405);
  EXPECT_EQ(status({.method = "GET", .path = "/none"}), 404);
  EXPECT_EQ(status({.method = "POST", .path = "/work"}), 401);
  for (const char* wrong : {"key", "Bearer ", "Bearer ke", "Bearer keyy", "bearer key"})
    EXPECT_EQ(status({.method = "POST", .path = "/work", .authorization = wrong}), 401) << wrong;
  EXPECT_EQ(status({.method = "POST", .path = "/work", .query = {{"token", "key"}}}), 200);
  EXPECT_EQ(status({.method = "POST", .path = "/work", .query = {{"token", ""}}}), 401);
}

TEST_F(HttpHandlerTest, RefusesOtherHostsAndSites) {
  work_.host = "evil.example";
  EXPECT_EQ(status(work_), 200) << "it does not know that it is local";
  handler_.set_local_host("127.0.0.1");
  EXPECT_EQ(status(work_), 403);
  work_.host = "localhost:8080";
  EXPECT_EQ(status(work_), 200);
  work_.origin = "http://evil.example";
  EXPECT_EQ(status(work_), 403);
  work_.origin = "http://localhost:8080";
  EXPECT_EQ(status(work_), 200);
}

TEST_F(HttpHandlerTest, TurnsExceptionsIntoReplies) {
  work_.body = "mistake";
  EXPECT_EQ(status(work_), 400);
  work_.body = "failure";
  EXPECT_EQ(status(work_), 500);
}

TEST(HttpRequestTest, HasParameters) {
  const HttpRequest request{
      .method = "GET", .path = "/", .query = {{"a", "1"}, {"b", ""}, {"a", "2"}}};
  EXPECT_EQ(request.parameter("a"), "1");
  EXPECT_EQ(request.parameter("b"), "");
  EXPECT_EQ(request.parameter("c"), std::nullopt);
  EXPECT_EQ(request.parameters("a"), (std::vector<std::string>{"1", "2"}));
}

TEST(PageReply, ReplacesEveryMark) {
  const HttpReply reply = page_reply("<style nonce=\"NONCE\"></style><script nonce=\"NONCE\">");
  const std::string nonce = reply.body.substr(14, 32);
  EXPECT_EQ(reply.body, "<style nonce=\"" + nonce + "\"></style><script nonce=\"" + nonce + "\">");
  EXPECT_THAT(reply.headers[0].second, HasSubstr("script-src 'nonce-" + nonce + "'"));
}

}  // namespace
}  // namespace kintsugi
