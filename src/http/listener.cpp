#include "http/listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <tuple>

#include "core/error.h"

namespace kintsugi {
namespace {

constexpr int kBacklog = 512;

// An IPv4 or IPv6 address as numbers, and its port.
std::pair<std::string, int> numbers_of(const sockaddr_storage& address) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), sizeof(address), host.data(),
                host.size(), port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
  return {host.data(), std::atoi(port.data())};
}

int listening_socket(const addrinfo& address) {
  const int socket = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return -1;
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));  // after a restart
  if (::bind(socket, address.ai_addr, address.ai_addrlen) == 0 && ::listen(socket, kBacklog) == 0)
    return socket;
  const int error = errno;
  ::close(socket);
  errno = error;
  return -1;
}

}  // namespace

HttpListener::HttpListener(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) user_error("--host {}: {}", host, ::gai_strerror(code));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr && socket_ < 0; one = one->ai_next)
    socket_ = listening_socket(*one);
  if (socket_ < 0 && errno == EADDRINUSE)
    user_error(
        "port {} of {} is in use by another program; choose another --port, or 0 for a free one",
        port, host);
  if (socket_ < 0) user_error("cannot listen on {}:{}: {}", host, port, std::strerror(errno));
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length);
  std::tie(host_, port_) = numbers_of(address);
}

HttpListener::~HttpListener() { close(); }

void HttpListener::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

std::string HttpListener::address() const {
  const bool six = host_.find(':') != host_.npos;
  return (six ? "[" + host_ + "]" : host_) + ":" + std::to_string(port_);
}

bool HttpListener::is_local() const { return host_.starts_with("127.") || host_ == "::1"; }

int HttpListener::accept(int timeout_ms) {
  pollfd entry{socket_, POLLIN, 0};
  if (::poll(&entry, 1, timeout_ms) <= 0) return -1;
  const int accepted = ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
  // Without free descriptors or memory, poll() would return at once again and again.
  if (accepted < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return accepted;
}

std::vector<std::string> names_of_machine(const std::string& host) {
  std::vector<std::string> names = {host};
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0) return names;
  names.emplace_back(name);
  addrinfo hints{};
  hints.ai_flags = AI_CANONNAME;
  addrinfo* found = nullptr;
  if (::getaddrinfo(name, nullptr, &hints, &found) != 0) return names;
  if (found->ai_canonname != nullptr) names.emplace_back(found->ai_canonname);
  ::freeaddrinfo(found);
  return names;
}

}  // namespace kintsugi
