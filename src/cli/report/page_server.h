#pragma once

#include <functional>
#include <string>

#include "cli/options.h"
#include "http/http_server.h"

namespace kintsugi {

// The options and the life of a server with a page: `kintsugi dashboard`, `kintsugi data explore`.
struct PageServer {
  std::string token = {};
  HttpServerOptions options{.port = 8080,
                            .max_connections = 128,
                            .connection = {.max_body = 4096, .reply_timeout_s = 3600}};
};

void add_page_server_options(const AddOption& add, PageServer& server);

// The option or the environment variable.
std::string token_of(const PageServer& server);

// Serves until a signal. `what`, such as "3 runs", stands before the address, and `readable` names
// what anyone may read if there is no token; `opened` is called when the server listens.
void serve_page(HttpHandler& service, const PageServer& server, const std::string& what,
                const std::string& readable, const std::function<void()>& opened = {});

}  // namespace kintsugi
