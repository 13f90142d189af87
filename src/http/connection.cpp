#include "http/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace kintsugi {
namespace {

constexpr std::size_t kMostHeaderBytes = 64 << 10, kReadBytes = 16 << 10;
constexpr auto kSlice = std::chrono::milliseconds(200);  // between looks at `ending`
constexpr auto kLinger = std::chrono::seconds(1);

std::chrono::steady_clock::time_point after(double time_s) {
  using Clock = std::chrono::steady_clock;
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(time_s));
}

}  // namespace

Connection::Connection(int socket, const ConnectionLimits& limits, const std::atomic<bool>& ending)
    : socket_(socket), limits_(limits), ending_(ending) {
  const int on = 1;
  ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

Connection::~Connection() {
  flush();
  if ((closing_ || exhausted_) && !failed_ && !ending_) linger();
  ::close(socket_);
}

// Closing a socket with unread bytes resets the connection, and the client may lose the reply.
void Connection::linger() {
  ::shutdown(socket_, SHUT_WR);
  const auto deadline = Clock::now() + kLinger;
  std::array<char, 4096> rest;
  while (wait(POLLIN, deadline))
    if (::recv(socket_, rest.data(), rest.size(), MSG_DONTWAIT) <= 0) return;
}

bool Connection::wait(short events, Clock::time_point deadline) const {
  while (!ending_) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::min<Clock::duration>(deadline - Clock::now(), kSlice));
    pollfd entry{socket_, events, 0};
    const int ready = ::poll(&entry, 1, std::max<int>(0, static_cast<int>(left.count())));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (Clock::now() >= deadline) return false;
  }
  return false;
}

bool Connection::gone() const {
  pollfd entry{socket_, POLLRDHUP, 0};
  return failed_ || ending_ || (::poll(&entry, 1, 0) > 0 && entry.revents != 0);
}

bool Connection::wait_for_request() {
  if (used_ < buffer_.size()) return true;  // of a client that did not wait for the reply
  return wait(POLLIN, after(limits_.idle_timeout_s));
}

void Connection::begin_headers() {
  deadline_ = after(limits_.header_timeout_s);
  allowance_ = kMostHeaderBytes;
}

void Connection::begin_body() {
  deadline_ = after(limits_.body_timeout_s);
  allowance_ = 2 * limits_.max_body + kMostHeaderBytes;  // with the sizes of chunks
}

bool Connection::fill() {
  buffer_.resize(kReadBytes);
  used_ = 0;
  ssize_t got = -1;
  do {
    if (!wait(POLLIN, deadline_)) {
      timed_out_ = true;
      break;
    }
    got = ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
  } while (got < 0 && (errno == EAGAIN || errno == EINTR));
  buffer_.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  exhausted_ = exhausted_ || got < 0;
  return got > 0;
}

ssize_t Connection::read(char* data, std::size_t size) {
  if (!flush()) return -1;
  if (allowance_ == 0) exhausted_ = true;
  if (exhausted_) return -1;
  if (used_ == buffer_.size() && !fill()) return exhausted_ ? -1 : 0;
  const std::size_t count = std::min({size, buffer_.size() - used_, allowance_});
  std::memcpy(data, buffer_.data() + used_, count);
  used_ += count;
  allowance_ -= count;
  return static_cast<ssize_t>(count);
}

ssize_t Connection::write(const char* data, std::size_t size) {
  if (failed_) return -1;
  if (holds_) {
    held_.assign(data, size);
    holds_ = false;
    reply_deadline_ = after(limits_.reply_timeout_s);
    return static_cast<ssize_t>(size);
  }
  const bool sent = held_.empty() ? send_all({data, size})
                                  : send_all(std::exchange(held_, {}).append(data, size));
  return sent ? static_cast<ssize_t>(size) : -1;
}

bool Connection::flush() {
  holds_ = true;
  return held_.empty() || send_all(std::exchange(held_, {}));
}

bool Connection::send_all(std::string_view data) {
  auto deadline = std::min(after(limits_.write_timeout_s), reply_deadline_);
  while (!data.empty() && !failed_) {
    const ssize_t sent = ::send(socket_, data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      data.remove_prefix(static_cast<std::size_t>(sent));
      deadline = std::min(after(limits_.write_timeout_s), reply_deadline_);
    } else if (sent < 0 && errno != EAGAIN && errno != EINTR) {
      failed_ = true;
    } else if (!wait(POLLOUT, deadline)) {
      failed_ = true;
    }
  }
  return !failed_;
}

}  // namespace kintsugi
