// The server's page in a browser.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "comm/communicator.h"
#include "http/http_server.h"
#include "http/listener.h"
#include "serve/http/service.h"
#include "support/browser.h"
#include "support/served_model.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class PageInBrowser : public testing::Test {
 protected:
  void SetUp() override {
    if (!Browser::installed())
      GTEST_SKIP()
          << "chromium and chromedriver are not installed (Debian: chromium, chromium-driver)";
    make_served_model(directory_ / "model");
    engine_ = std::make_unique<InferenceEngine>(*backend_, alone_, directory_ / "model",
                                                InferenceOptions{.max_length = 8192});
    service_ = std::make_unique<HttpService>(
        *engine_, load_tokenizer((directory_ / "model").string()), PromptSettings{},
        ServiceOptions{.name = "tiny",
                       .limits = {.max_tokens = 8000},
                       .api_key = "secret",
                       .format = &find_chat_format("chatml")});
    server_ = std::make_unique<HttpServer>(*service_, HttpServerOptions{.port = 0});
    const int free_port = HttpListener("127.0.0.1", 0).port();
    browser_ = std::make_unique<Browser>(free_port);
    browser_->open("http://" + server_->address() + "/");
  }
  std::string text_of(const std::string& id) {
    return browser_->script("return document.getElementById('" + id + "').textContent");
  }
  void set(const std::string& id, const std::string& value) {
    browser_->script("document.getElementById('" + id +
                     "').value = " + nlohmann::json(value).dump());
  }
  void wait_for_end() {
    EXPECT_TRUE(browser_->wait_for("document.getElementById('stop').disabled"))
        << text_of("status");
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Backend> backend_ = make_cpu_backend(1);
  LocalCommunicator alone_{"tensor", backend_.get()};
  std::unique_ptr<InferenceEngine> engine_;
  std::unique_ptr<HttpService> service_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<Browser> browser_;
};

// One test, because a browser takes seconds to start.
TEST_F(PageInBrowser, CompletesChatsAndShowsTextAsText) {
  // The key is needed, and is asked for.
  EXPECT_TRUE(browser_->wait_for("document.getElementById('model').textContent != ''"));
  EXPECT_THAT(text_of("model"), HasSubstr("API key"));
  browser_->type("prompt", "abc");
  browser_->click("send");
  EXPECT_TRUE(browser_->wait_for("document.getElementById('status').className == 'bad'"));
  EXPECT_THAT(text_of("status"), HasSubstr("API key"));
  browser_->type("key", "secret\t");
  EXPECT_TRUE(browser_->wait_for("document.getElementById('model').textContent == 'tiny'"));

  // A completion: the same text as without the page, with the probability of each token.
  set("max_tokens", "6");
  set("temperature", "0");
  browser_->click("send");
  wait_for_end();
  const HttpAnswer plain = http_post(server_->port(), "/v1/completions",
                                     R"({"prompt": "abc", "max_tokens": 6, "temperature": 0})",
                                     "Authorization: Bearer secret\r\n");
  EXPECT_EQ(text_of("result"),
            "abc" + nlohmann::json::parse(plain.body)["choices"][0]["text"].get<std::string>());
  EXPECT_THAT(text_of("status"), StartsWith("6 tokens"));
  EXPECT_THAT(browser_->script("return document.querySelector('.token').title").get<std::string>(),
              HasSubstr("%"));

  // Text of an attacker, in a prompt and from a model.
  const std::string attack = "<img src=x onerror=\"document.title='owned'\"><script>1</script>";
  set("prompt", attack);
  browser_->click("send");
  wait_for_end();
  EXPECT_THAT(text_of("result"), StartsWith(attack));
  browser_->script("addToken(document.getElementById('result'), " + nlohmann::json(attack).dump() +
                   ", 'x', -1, [])");
  EXPECT_EQ(
      browser_->script("return document.querySelectorAll('#result img, #result script').length"),
      0);
  EXPECT_EQ(browser_->script("return document.title"), "Kintsugi");

  // A chat.
  browser_->click("tab-chat");
  browser_->type("message", "hello");
  browser_->click("send");
  wait_for_end();
  EXPECT_EQ(browser_->script("return document.querySelector('.turn.user').textContent"), "hello");
  EXPECT_EQ(browser_->script("return document.querySelectorAll('.turn.assistant').length"), 1);

  // A message that was not answered is no part of the conversation, and can be changed.
  browser_->script("document.getElementById('message').value = 'long '.repeat(9000)");
  browser_->click("send");
  EXPECT_TRUE(browser_->wait_for("document.getElementById('status').className == 'bad'"));
  wait_for_end();
  EXPECT_THAT(text_of("status"), HasSubstr("room for 8192"));
  EXPECT_EQ(browser_->script("return document.querySelectorAll('.turn').length"), 2);
  EXPECT_EQ(browser_->script("return messages.length"), 2);
  EXPECT_EQ(browser_->script("return document.getElementById('message').value.length"), 45000);
  set("message", "");

  // More tokens than there is room for are not asked for.
  set("max_tokens", "1000000");
  set("stop_text", "a");
  browser_->click("tab-completion");
  set("prompt", "abc");
  browser_->click("send");
  wait_for_end();
  EXPECT_EQ(browser_->script("return document.getElementById('status').className"), "");
  set("stop_text", "");

  // The stop button ends the request on the server too.
  set("max_tokens", "8000");
  set("temperature", "1");
  browser_->click("tab-completion");
  set("prompt", "abc");
  browser_->click("send");
  EXPECT_TRUE(browser_->wait_for("document.querySelectorAll('#result .token').length > 3"));
  browser_->script("document.getElementById('stop').click()");
  wait_for_end();
  for (int i = 0; i < 60000 && service_->open_sequences() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(service_->open_sequences(), 0);

  // Nothing came from elsewhere.
  const auto sources = browser_->script(
      "return performance.getEntriesByType('resource').map((entry) => entry.name)");
  for (const auto& source : sources)
    EXPECT_THAT(
        source.get<std::string>(),
        testing::AnyOf(StartsWith("http://" + server_->address() + "/"), StartsWith("data:")));
}

}  // namespace
}  // namespace kintsugi
