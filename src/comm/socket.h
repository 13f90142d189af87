#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/file.h"

namespace kintsugi {

// A TCP connection that transfers frames, each a type and a text. The destructor closes it.
class Socket {
 public:
  struct Frame {
    char type = 0;
    std::string text;
  };

  Socket() = default;
  explicit Socket(int descriptor);

  explicit operator bool() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  void close() { descriptor_ = FileDescriptor(); }

  // Returns false if the connection is closed. Texts longer than 64 KiB are truncated.
  bool send(char type, std::string text);
  // Reads the input so far without blocking; false if the connection is closed. next() returns the
  // complete frames.
  bool read();
  std::optional<Frame> next();
  // Waits for a frame; empty after the timeout or if the connection is closed.
  std::optional<Frame> receive(int timeout_ms);

 private:
  FileDescriptor descriptor_;
  std::string input_;
};

class Listener {
 public:
  // Listens on any free port, with loopback_only on the loopback interface only. Throws Failure if
  // it cannot listen.
  explicit Listener(bool loopback_only);
  int port() const { return port_; }
  int descriptor() const { return socket_.descriptor(); }
  Socket accept();  // an empty socket if there is no connection

 private:
  Socket socket_;
  int port_ = 0;
};

// Starts to connect (IPv4 only) and does not block. The socket becomes writable when it is
// connected or has failed; connected() tells which. Returns an empty socket if it fails at once.
Socket begin_connect(const std::string& address, int port);
bool connected(const Socket& socket);
// Returns an empty socket if the connection fails or times out.
Socket connect_to(const std::string& address, int port, int timeout_ms);

std::string host_name();
// A random text. Other programs may connect to an open port; only ranks of this job know it.
std::string make_password();
// The IPv4 addresses of this machine except the loopback.
std::vector<std::string> host_addresses();

}  // namespace kintsugi
