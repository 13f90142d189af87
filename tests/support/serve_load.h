#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/http_client.h"

namespace kintsugi {

// Many clients of a server at the same time, most of them unpleasant.
struct LoadOptions {
  int port = 0, clients = 200;
  double time_s = 60;
  std::size_t too_large = (16u << 20) + 1;  // bytes of a body that the server refuses
};

struct LoadReport {
  std::map<std::string, std::int64_t> counts;  // "complete 200" -> replies
  std::int64_t requests = 0, unanswered = 0;   // of clients that behave
};

class ServeLoad {
 public:
  explicit ServeLoad(const LoadOptions& options) : options_(options) {}

  LoadReport run() {
    std::vector<std::thread> clients;
    for (int i = 0; i < options_.clients; ++i) clients.emplace_back([this, i] { client(i); });
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.time_s));
    ending_ = true;
    for (std::thread& one : clients) one.join();
    return report_;
  }

 private:
  using Random = std::mt19937_64;

  void client(int number) {
    Random random(static_cast<std::uint64_t>(number));
    while (!ending_) {
      const std::string body = R"({"prompt": "load )" + std::to_string(random() % 100) +
                               R"(", "max_tokens": )" + std::to_string(1 + random() % 32);
      switch (number % 8) {
        case 0:
        case 1:
        case 2:
          complete(body + "}");
          break;
        case 3:
          read_stream(body + R"(, "stream": true})");
          break;
        case 4:
          read_slowly(body + R"(, "stream": true, "logprobs": 20})");
          break;
        case 5:
          send_half(http_text("POST", "/v1/completions", body + "}"), random);
          break;
        case 6:
          leave(body + R"(, "stream": true})");
          break;
        default:
          send_nonsense(body + "}", random);
          break;
      }
    }
  }

  void count(const std::string& kind, const std::string& what) {
    const std::lock_guard lock(mutex_);
    ++report_.counts[kind + " " + what];
    ++report_.requests;
  }
  static std::string status_of(const HttpAnswer& answer) {
    return answer.status == 0 ? "no reply" : std::to_string(answer.status);
  }
  void well_behaved(const char* kind, const HttpAnswer& answer, bool complete) {
    count(kind, complete ? status_of(answer) : "incomplete");
    if (answer.status != 0 && complete) return;
    const std::lock_guard lock(mutex_);
    ++report_.unanswered;
  }

  void complete(const std::string& body) {
    well_behaved("complete", http_post(options_.port, "/v1/completions", body), true);
  }
  void read_stream(const std::string& body) {
    const HttpAnswer answer = http_post(options_.port, "/v1/completions", body);
    well_behaved("stream", answer,
                 answer.status != 200 || answer.body.ends_with("data: [DONE]\n\n"));
  }
  void read_slowly(const std::string& body) {
    RawClient client(options_.port);
    client.send(http_text("POST", "/v1/completions", body));
    std::size_t received = 0;
    for (int i = 0; i < 100 && !ending_; ++i) {
      const std::string part = client.receive(64);
      if (part.empty()) break;
      received += part.size();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    count("read slowly", received > 0 ? "left" : "no reply");
  }
  void send_half(const std::string& request, Random& random) {
    RawClient client(options_.port);
    client.send(request.substr(0, 1 + random() % (request.size() - 1)));
    client.receive(64, 0.2);
    count("half a request", "left");
  }
  void leave(const std::string& body) {
    RawClient client(options_.port);
    client.send(http_text("POST", "/v1/completions", body));
    const std::string first = client.receive(64);
    count("leave early", first.empty() ? "no reply" : "left");
  }
  void send_nonsense(const std::string& body, Random& random) {
    RawClient client(options_.port);
    std::string text = http_text("POST", "/v1/completions", body);
    const std::uint64_t kind = random() % 4;
    if (kind == 0)  // a body that is too large
      text =
          "POST /v1/completions HTTP/1.1\r\nContent-Length: " + std::to_string(options_.too_large) +
          "\r\n\r\n" + std::string(65536, ' ');
    else if (kind == 1)  // not HTTP
      for (char& c : text) c = static_cast<char>(random());
    else  // damaged JSON
      for (int i = 0; i < 3; ++i)
        text[text.size() - 1 - random() % body.size()] = static_cast<char>(random());
    client.send(text);
    client.end_of_input();
    count("nonsense", status_of(parse_answer(client.receive_all())));
  }

  LoadOptions options_;
  std::atomic<bool> ending_ = false;
  std::mutex mutex_;
  LoadReport report_;
};

}  // namespace kintsugi
