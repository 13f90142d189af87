#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "http/connection.h"
#include "http/http_handler.h"

namespace kintsugi {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: a free one
  std::int64_t max_connections = 512;
  ConnectionLimits connection = {};
};

// Offers a service over HTTP/1.1, with a thread for each connection.
class HttpServer {
 public:
  // Listens from now on. UserError if it cannot.
  HttpServer(HttpHandler& service, const HttpServerOptions& options);
  ~HttpServer();  // as shutdown(0)

  int port() const;
  std::string address() const;  // "127.0.0.1:8000"
  bool is_local() const;        // only this machine can connect
  std::int64_t connections() const;

  // Refuses new work, lets running requests finish for at most this time, then ends all
  // connections. Returns whether all had finished.
  bool shutdown(double timeout_s);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kintsugi
