#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

namespace kintsugi {

struct ConnectionLimits {
  std::size_t max_body = 16 << 20;  // bytes
  double header_timeout_s = 10;     // for all header lines of a request
  double body_timeout_s = 60;       // for its whole body
  double write_timeout_s = 30;      // while the client accepts nothing
  double reply_timeout_s = 630;     // for a whole reply
  double idle_timeout_s = 60;       // between requests
};

// One connection of a client, with limits on time and bytes: a client that sends or reads slowly
// does not hold its thread for long. Owns the socket.
class Connection {
 public:
  // `ending`: set when the server ends; every wait then stops.
  Connection(int socket, const ConnectionLimits& limits, const std::atomic<bool>& ending);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Waits for the first byte of a request. False: there will be none.
  bool wait_for_request();
  void begin_headers();
  void begin_body();

  // Waits for a byte. True: there will be none.
  bool at_end() { return used_ == buffer_.size() && !fill(); }
  ssize_t read(char* data, std::size_t size);  // 0: end, -1: error or a limit is exceeded
  // Keeps the first write after a read until the second one, so that headers and body are sent
  // together.
  ssize_t write(const char* data, std::size_t size);
  bool flush();
  bool gone() const;  // the client has closed the connection
  bool timed_out() const { return timed_out_; }
  bool over_limit() const { return allowance_ == 0; }  // the client has sent too many bytes

  // The connection is closed after this reply, because the rest of a request was not read.
  void set_closing() { closing_ = true; }
  bool closing() const { return closing_; }

 private:
  using Clock = std::chrono::steady_clock;

  bool wait(short events, Clock::time_point deadline) const;
  bool send_all(std::string_view data);
  bool fill();
  void linger();

  int socket_;
  ConnectionLimits limits_;
  const std::atomic<bool>& ending_;
  Clock::time_point deadline_ = {};  // for reading
  Clock::time_point reply_deadline_ = {};
  std::size_t allowance_ = 0;  // bytes that may still be read
  std::string buffer_, held_;
  std::size_t used_ = 0;    // of the buffer
  bool holds_ = true;       // the next write
  bool exhausted_ = false;  // nothing more can be read: an error or a limit
  bool failed_ = false, closing_ = false, timed_out_ = false;
};

}  // namespace kintsugi
