#include "comm/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>

#include "core/error.h"

namespace kintsugi {
namespace {

constexpr std::size_t kHeader = 5;  // type, length
constexpr std::size_t kMaxTextBytes = 64 * 1024;

void set_option(int descriptor, int level, int option, int value) {
  setsockopt(descriptor, level, option, &value, sizeof value);
}

sockaddr_in ipv4(const std::string& address, int port) {
  sockaddr_in endpoint{};
  endpoint.sin_family = AF_INET;
  endpoint.sin_port = htons(static_cast<std::uint16_t>(port));
  inet_pton(AF_INET, address.c_str(), &endpoint.sin_addr);
  return endpoint;
}

bool wait_for(int descriptor, short events, int timeout_ms) {
  pollfd entry{descriptor, events, 0};
  int found = 0;
  do {
    found = poll(&entry, 1, timeout_ms);
  } while (found < 0 && errno == EINTR);
  return found > 0;
}

}  // namespace

Socket::Socket(int descriptor) : descriptor_(descriptor) {
  if (descriptor < 0) return;
  set_option(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  // A machine that crashes does not close the connection: detect it after 4 + 3 x 2 seconds.
  set_option(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, 4);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

bool Socket::send(char type, std::string text) {
  if (text.size() > kMaxTextBytes) text.resize(kMaxTextBytes);
  const auto length = static_cast<std::uint32_t>(text.size());
  std::string bytes(kHeader, type);
  for (int i = 0; i < 4; ++i) bytes[1 + i] = static_cast<char>(length >> (8 * i));
  bytes += text;
  for (std::size_t begin = 0; begin < bytes.size();) {
    const ssize_t sent = ::send(descriptor_, bytes.data() + begin, bytes.size() - begin,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0)
      begin += static_cast<std::size_t>(sent);
    else if (errno == EAGAIN ? !wait_for(descriptor_, POLLOUT, 2000) : errno != EINTR)
      return false;
  }
  return true;
}

bool Socket::read() {
  char bytes[4096];
  for (;;) {
    const ssize_t got = recv(descriptor_, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got > 0)
      input_.append(bytes, static_cast<std::size_t>(got));
    else if (got == 0 || (errno != EINTR && errno != EAGAIN))
      return false;
    else if (errno == EAGAIN)
      return true;
  }
}

std::optional<Socket::Frame> Socket::next() {
  if (input_.size() < kHeader) return {};
  std::uint32_t length = 0;
  for (int i = 0; i < 4; ++i)
    length |= static_cast<std::uint32_t>(static_cast<unsigned char>(input_[1 + i])) << (8 * i);
  // No rank sends more: another program connected, and its frame is never complete.
  if (length > kMaxTextBytes || input_.size() < kHeader + length) return {};
  Frame frame{input_[0], input_.substr(kHeader, length)};
  input_.erase(0, kHeader + length);
  return frame;
}

std::optional<Socket::Frame> Socket::receive(int timeout_ms) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    if (auto frame = next()) return frame;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0 || !wait_for(descriptor_, POLLIN, static_cast<int>(left.count())))
      return {};
    if (!read()) return next();
  }
}

Listener::Listener(bool loopback_only)
    : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  sockaddr_in endpoint = ipv4(loopback_only ? "127.0.0.1" : "0.0.0.0", 0);
  socklen_t length = sizeof endpoint;
  if (!socket_ || bind(descriptor(), reinterpret_cast<sockaddr*>(&endpoint), length) != 0 ||
      listen(descriptor(), SOMAXCONN) != 0 ||
      getsockname(descriptor(), reinterpret_cast<sockaddr*>(&endpoint), &length) != 0)
    failure("cannot listen for the other ranks: {}", std::strerror(errno));
  port_ = ntohs(endpoint.sin_port);
}

Socket Listener::accept() { return Socket(accept4(descriptor(), nullptr, nullptr, SOCK_CLOEXEC)); }

Socket begin_connect(const std::string& address, int port) {
  Socket result(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!result) return {};
  const sockaddr_in endpoint = ipv4(address, port);
  if (connect(result.descriptor(), reinterpret_cast<const sockaddr*>(&endpoint), sizeof endpoint) ==
          0 ||
      errno == EINPROGRESS)
    return result;
  return {};
}

bool connected(const Socket& socket) {
  int error = 0;
  socklen_t length = sizeof error;
  return getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
}

Socket connect_to(const std::string& address, int port, int timeout_ms) {
  Socket result = begin_connect(address, port);
  if (!result || !wait_for(result.descriptor(), POLLOUT, timeout_ms) || !connected(result))
    return {};
  return result;
}

std::string make_password() {
  std::random_device random;
  std::string password;
  for (int i = 0; i < 4; ++i) password += fmt::format("{:08x}", random());
  return password;
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

std::vector<std::string> host_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return addresses;
  for (const ifaddrs* at = interfaces; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET ||
        (at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0)
      continue;
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr, text,
              sizeof text);
    addresses.emplace_back(text);
  }
  freeifaddrs(interfaces);
  return addresses;
}

}  // namespace kintsugi
