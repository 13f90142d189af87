#include "http/http_post.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <memory>

#include "core/error.h"
#include "core/file.h"

namespace kintsugi {
namespace {

using PostClock = std::chrono::steady_clock;

constexpr std::string_view kScheme = "http://";
constexpr std::size_t kMostStatusLine = 4096;

// Neither the request line nor a header can be ended by a part of the address.
bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7F; });
}

bool is_port(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number > 0 && number < 65536;
}

class PostSocket {
 public:
  PostSocket(const addrinfo& to, PostClock::time_point end)
      : file_(
            ::socket(to.ai_family, to.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, to.ai_protocol)),
        end_(end) {
    if (file_ < 0) failure("{}", std::strerror(errno));
    if (::connect(file_, to.ai_addr, to.ai_addrlen) == 0) return;
    if (errno != EINPROGRESS) failure("{}", std::strerror(errno));
    wait_for(POLLOUT);
    int error = 0;
    socklen_t size = sizeof(error);
    if (::getsockopt(file_, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    if (error != 0) failure("{}", std::strerror(error));
  }

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      wait_for(POLLOUT);
      const ssize_t sent = ::send(file_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (sent < 0) failure("{}", std::strerror(errno));
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }

  std::string receive_line() {
    std::string text;
    while (text.find('\n') == std::string::npos && text.size() < kMostStatusLine) {
      wait_for(POLLIN);
      std::array<char, 512> part;
      const ssize_t got = ::recv(file_, part.data(), part.size(), 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got < 0) failure("{}", std::strerror(errno));
      if (got == 0) break;
      text.append(part.data(), static_cast<std::size_t>(got));
    }
    return text;
  }

 private:
  void wait_for(short events) {
    while (true) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(end_ - PostClock::now()).count();
      if (left <= 0) failure("no answer in time");
      pollfd entry{file_, events, 0};
      if (::poll(&entry, 1, static_cast<int>(left)) > 0) return;
    }
  }

  FileDescriptor file_;
  PostClock::time_point end_;
};

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Addresses look_up(const HttpAddress& to) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  const int error = ::getaddrinfo(to.host.c_str(), to.port.c_str(), &wanted, &found);
  if (error != 0) failure("{}", ::gai_strerror(error));
  return {found, ::freeaddrinfo};
}

int status_of(const std::string& line) {
  int status = 0;
  const std::size_t at = line.find(' ');
  if (!line.starts_with("HTTP/1.") || at == std::string::npos) failure("the answer is not HTTP");
  std::from_chars(line.data() + at + 1, line.data() + line.size(), status);
  if (status < 100 || status > 599) failure("the answer is not HTTP");
  return status;
}

int post_once(const addrinfo& address, const std::string& request, PostClock::time_point end) {
  PostSocket socket(address, end);
  socket.send(request);
  return status_of(socket.receive_line());
}

}  // namespace

HttpAddress parse_http_address(const std::string& url) {
  if (url.starts_with("https://"))
    user_error("'{}': https is not supported here; use a command instead: curl -sS --json @- {}",
               url, url);
  if (!url.starts_with(kScheme) || !is_plain(url))
    user_error("'{}' is not an address such as http://host:8080/path", url);
  const std::string rest = url.substr(kScheme.size());
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  std::string host = rest.substr(0, slash);
  HttpAddress address{.host = "", .port = "80", .path = rest.substr(slash)};
  if (address.path.empty()) address.path = "/";
  const std::size_t bracket = host.find(']');  // [::1]:8080
  const std::size_t colon = host.find(':', bracket == std::string::npos ? 0 : bracket);
  if (colon != std::string::npos) {
    address.port = host.substr(colon + 1);
    host.resize(colon);
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  address.host = host;
  if (host.empty() || !is_port(address.port) || host.find('@') != std::string::npos)
    user_error("'{}' is not an address such as http://host:8080/path", url);
  return address;
}

int http_post(const HttpAddress& to, std::string_view content_type, std::string_view body,
              double timeout_s) {
  const auto end = PostClock::now() + std::chrono::duration_cast<PostClock::duration>(
                                          std::chrono::duration<double>(timeout_s));
  const bool is_v6 = to.host.find(':') != std::string::npos;
  const std::string request = fmt::format(
      "POST {} HTTP/1.1\r\nHost: {}{}{}:{}\r\nContent-Type: {}\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      to.path, is_v6 ? "[" : "", to.host, is_v6 ? "]" : "", to.port, content_type, body.size(),
      body);
  const Addresses addresses = look_up(to);
  for (const addrinfo* one = addresses.get();; one = one->ai_next) try {
      return post_once(*one, request, end);
    } catch (const Failure&) {
      if (one->ai_next == nullptr) throw;
    }
}

}  // namespace kintsugi
