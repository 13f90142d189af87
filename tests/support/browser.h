#pragma once

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <fstream>
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
  // Presses the button at one point of the window, moves and releases it, in CSS pixels.
  void drag(int from_x, int from_y, int to_x, int to_y) {
    const auto move = [](int x, int y) {
      return nlohmann::json{{"type", "pointerMove"}, {"duration", 50}, {"x", x}, {"y", y}};
    };
    const nlohmann::json steps = {move(from_x, from_y),
                                  {{"type", "pointerDown"}, {"button", 0}},
                                  move((from_x + to_x) / 2, (from_y + to_y) / 2),
                                  move(to_x, to_y),
                                  {{"type", "pointerUp"}, {"button", 0}}};
    const nlohmann::json mouse = {{"type", "pointer"}, {"id", "mouse"}, {"actions", steps}};
    call("/actions", {{"actions", nlohmann::json::array({mouse})}});
  }
  void set_window(int width, int height) {
    call("/window/rect", {{"width", width}, {"height", height}});
  }
  // What the window shows, as a PNG file.
  void screenshot(const std::filesystem::path& file) {
    const HttpAnswer answer = http_get(port_, session_ + "/screenshot");
    const std::string png = decode_base64(nlohmann::json::parse(answer.body).at("value"));
    std::ofstream(file, std::ios::binary) << png;
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
  static std::string decode_base64(const std::string& text) {
    static constexpr std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string bytes;
    unsigned value = 0;
    int bits = 0;
    for (const char letter : text) {
      const std::size_t digit = kDigits.find(letter);
      if (digit == kDigits.npos) continue;  // line ends and padding
      value = value << 6 | static_cast<unsigned>(digit);
      bits += 6;
      if (bits < 8) continue;
      bits -= 8;
      bytes += static_cast<char>(value >> bits & 0xff);
    }
    return bytes;
  }
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
