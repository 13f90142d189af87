#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cctype>
#include <chrono>
#include <string>
#include <string_view>

namespace kintsugi {

// A TCP connection to a port of this machine that sends exactly the bytes it is given, also those
// of no valid request.
class RawClient {
 public:
  explicit RawClient(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~RawClient() { ::close(socket_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return connected_; }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  void end_of_input() { ::shutdown(socket_, SHUT_WR); }
  // Up to `most` bytes; "" at the end, after an error or after the time.
  std::string receive(std::size_t most = 65536, double time_s = 60) {
    pollfd entry{socket_, POLLIN, 0};
    if (::poll(&entry, 1, static_cast<int>(1000 * time_s)) <= 0) return "";
    std::string data(most, '\0');
    const ssize_t got = ::recv(socket_, data.data(), most, 0);
    data.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return data;
  }
  std::string receive_all() {
    std::string all;
    for (std::string part = receive(); !part.empty(); part = receive()) all += part;
    return all;
  }
  // Reads until the text arrives; returns everything up to then.
  std::string receive_until(std::string_view text) {
    std::string all;
    while (all.find(text) == all.npos) {
      const std::string part = receive();
      if (part.empty()) break;
      all += part;
    }
    return all;
  }

 private:
  int socket_;
  bool connected_ = false;
};

inline std::string http_text(const std::string& method, const std::string& path,
                             const std::string& body = "", const std::string& headers = "") {
  std::string text = method + " " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers;
  if (method == "POST") text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  return text + "Connection: close\r\n\r\n" + body;
}

struct HttpAnswer {
  int status = 0;  // 0: there was none
  std::string headers, body;
};

inline HttpAnswer parse_answer(const std::string& text) {
  HttpAnswer answer;
  const std::size_t end = text.find("\r\n\r\n");
  if (!text.starts_with("HTTP/1.1 ") || end == text.npos) return answer;
  answer.status = std::stoi(text.substr(9, 3));
  answer.headers = text.substr(0, end + 2);
  answer.body = text.substr(end + 4);
  if (answer.headers.find("Transfer-Encoding: chunked") == answer.headers.npos) return answer;
  std::string whole;
  for (std::size_t at = 0; at < answer.body.size();) {
    const std::size_t line = answer.body.find("\r\n", at);
    if (line == answer.body.npos) break;
    const std::size_t size = std::stoul(answer.body.substr(at, line - at), nullptr, 16);
    whole += answer.body.substr(line + 2, size);
    at = line + 2 + size + 2;
  }
  answer.body = whole;
  return answer;
}

// Everything that the peer sends, or as much as Content-Length says: some servers do not close.
inline std::string receive_reply(RawClient& client) {
  std::string all;
  const std::string_view field = "content-length:";
  for (std::string part = client.receive(); !part.empty(); part = client.receive()) {
    all += part;
    const std::size_t end = all.find("\r\n\r\n");
    if (end == all.npos) continue;
    std::string headers = all.substr(0, end);
    for (char& c : headers) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const std::size_t at = headers.find(field);
    if (at != headers.npos && all.size() >= end + 4 + std::stoul(headers.substr(at + field.size())))
      break;
  }
  return all;
}

inline HttpAnswer http_get(int port, const std::string& path, const std::string& headers = "") {
  RawClient client(port);
  client.send(http_text("GET", path, "", headers));
  return parse_answer(receive_reply(client));
}
inline HttpAnswer http_post(int port, const std::string& path, const std::string& body,
                            const std::string& headers = "") {
  RawClient client(port);
  client.send(http_text("POST", path, body, headers));
  return parse_answer(receive_reply(client));
}

}  // namespace kintsugi
