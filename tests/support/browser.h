#pragma once

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>

#include "support/http_client.h"

namespace kintsugi {

// A headless Chromium, driven over WebDriver (https://www.w3.org/TR/webdriver2) by chromedriver.
class Browser {
 public:
  static bool installed() {
    return std::system("command -v chromium chromedriver > /dev/null 2>&1") == 0;
  }

  // `port`: a free one, for chromedriver.
  explicit Browser(int port) : port_(port) {
    const std::string option = "--port=" + std::to_string(port);
    const char* arguments[] = {"chromedriver", option.c_str(), "--silent", nullptr};
    if (posix_spawnp(&pid_, "chromedriver", nullptr, nullptr, const_cast<char**>(arguments),
                     environ) != 0)
      throw std::runtime_error("chromedriver does not start");
    while (http_get(port_, "/status").status != 200) {
      if (::waitpid(pid_, nullptr, WNOHANG) != 0) throw std::runtime_error("chromedriver ended");
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    const nlohmann::json options = {
        {"binary", "/usr/bin/chromium"},
        {"args", {"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"}}};
    session_ = "/session";
    session_ += "/" + call("", {{"capabilities",
                                 {{"alwaysMatch",
                                   {{"browserName", "chrome"}, {"goog:chromeOptions", options}}}}}})
                          .at("sessionId")
                          .get<std::string>();
  }
  ~Browser() {
    RawClient client(port_);
    client.send("DELETE " + session_ + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    receive_reply(client);
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
  }
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  void open(const std::string& url) { call("/url", {{"url", url}}); }
  // The value of the last expression, which must say `return`.
  nlohmann::json script(const std::string& text) {
    return call("/execute/sync", {{"script", text}, {"args", nlohmann::json::array()}});
  }
  void click(const std::string& id) {
    call("/element/" + element(id) + "/click", nlohmann::json::object());
  }
  void type(const std::string& id, const std::string& text) {
    call("/element/" + element(id) + "/value", {{"text", text}});
  }
  // Waits until the expression is true.
  bool wait_for(const std::string& expression) {
    for (int i = 0; i < 600; ++i) {
      if (script("return Boolean(" + expression + ")") == true) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }

 private:
  std::string element(const std::string& id) {
    const nlohmann::json found = call("/element", {{"using", "css selector"}, {"value", "#" + id}});
    return found.begin().value().get<std::string>();
  }
  nlohmann::json call(const std::string& path, const nlohmann::json& body) {
    const HttpAnswer answer =
        http_post(port_, session_ + path, body.dump(), "Content-Type: application/json\r\n");
    const nlohmann::json value = nlohmann::json::parse(answer.body).at("value");
    if (answer.status != 200)
      throw std::runtime_error(path + ": " + value.value("message", answer.body));
    return value;
  }

  int port_;
  pid_t pid_ = 0;
  std::string session_;
};

}  // namespace kintsugi
