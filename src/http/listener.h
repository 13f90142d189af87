#pragma once

#include <string>
#include <vector>

namespace kintsugi {

// A listening TCP socket.
class HttpListener {
 public:
  // Port 0: a free one. UserError if the address is unknown or in use.
  HttpListener(const std::string& host, int port);
  ~HttpListener();
  HttpListener(const HttpListener&) = delete;
  HttpListener& operator=(const HttpListener&) = delete;

  int port() const { return port_; }
  std::string address() const;  // "127.0.0.1:8000"
  bool is_local() const;        // only this machine can connect
  // The socket of the next connection; -1: none within the time, or there was an error.
  int accept(int timeout_ms);
  void close();

 private:
  int socket_ = -1, port_ = 0;
  std::string host_;  // as numbers
};

// The names by which others may ask for this machine: the one it was told to listen on, its host
// name, and that with the domain if the system knows it.
std::vector<std::string> names_of_machine(const std::string& host);

}  // namespace kintsugi
