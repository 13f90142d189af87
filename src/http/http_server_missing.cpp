#include "core/error.h"
#include "http/http_server.h"

namespace kintsugi {

bool http_server_is_built() { return false; }

struct HttpServer::State {};

HttpServer::HttpServer(HttpHandler&, const HttpServerOptions&) {
  user_error(
      "this program was built without cpp-httplib 0.11, which kintsugi serve and kintsugi "
      "dashboard need; install it "
      "(Debian: libcpp-httplib-dev) and build again");
}
HttpServer::~HttpServer() = default;
int HttpServer::port() const { return 0; }
std::string HttpServer::address() const { return ""; }
bool HttpServer::is_local() const { return true; }
std::int64_t HttpServer::connections() const { return 0; }
bool HttpServer::shutdown(double) { return true; }

}  // namespace kintsugi
