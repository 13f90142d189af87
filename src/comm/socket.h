#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kintsugi {

// A connected TCP socket that carries frames: a type and a text. Closes itself.
class Socket {
 public:
  struct Frame {
    char type = 0;
    std::string text;
  };

  Socket() = default;
  explicit Socket(int descriptor);
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;

  explicit operator bool() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  void close();

  // False if the other side is gone. Long texts are cut.
  bool send(char type, std::string text);
  // Reads what has arrived, without waiting; false if the other side is gone. Frames that are
  // complete come out of next().
  bool read();
  std::optional<Frame> next();
  // Waits for a frame; nothing if none comes in time or the other side is gone.
  std::optional<Frame> receive(int timeout_ms);

 private:
  int descriptor_ = -1;
  std::string input_;
};

class Listener {
 public:
  // On any free port; on the loopback interface alone if told so. Failure if that cannot be.
  explicit Listener(bool loopback_only);
  int port() const { return port_; }
  int descriptor() const { return socket_.descriptor(); }
  Socket accept();  // none if nobody is there

 private:
  Socket socket_;
  int port_ = 0;
};

// IPv4 only. Does not wait: writable when it is connected or has failed, which connected() tells.
// None if that fails at once.
Socket begin_connect(const std::string& address, int port);
bool connected(const Socket& socket);
// None if it does not answer in time.
Socket connect_to(const std::string& address, int port, int timeout_ms);

std::string host_name();
// The IPv4 addresses of this machine but the loopback's.
std::vector<std::string> host_addresses();

}  // namespace kintsugi
