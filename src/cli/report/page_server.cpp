#include "cli/report/page_server.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "cli/process.h"
#include "core/log.h"

namespace kintsugi {
namespace {

constexpr double kShutdownTime_s = 2;

}  // namespace

void add_page_server_options(const AddOption& add, PageServer& server) {
  add("--host", server.options.host,
      "The address to listen on; 0.0.0.0: every network of this machine", kShowDefault);
  add("--port", server.options.port, "The port; 0: a free one, which is printed",
      whole_number(between(0, 65535)), kShowDefault);
  add("--token", server.token,
      "Browsers must give this token (?token=TOKEN in the address). Other users of the machine see "
      "options; the environment variable KINTSUGI_DASHBOARD_TOKEN hides it")
      ->check([](const std::string& token) { return token.empty() ? "--token is empty" : ""; });
}

std::string token_of(const PageServer& server) {
  return or_variable(server.token, "KINTSUGI_DASHBOARD_TOKEN");
}

void serve_page(HttpHandler& service, const PageServer& given, const std::string& what,
                const std::string& readable, const std::function<void()>& opened) {
  const bool has_token = !token_of(given).empty();
  HttpServer server(service, given.options);
  if (!server.is_local() && !has_token)
    log_warning(
        "other machines can connect and no token is set: anyone who reaches {} can read {}; "
        "set --token or KINTSUGI_DASHBOARD_TOKEN",
        server.address(), readable);
  log_info("{}: http://{}/{}", what, server.address(), has_token ? "?token=TOKEN" : "");
  if (server.is_local() && std::getenv("SSH_CONNECTION") != nullptr)
    log_info("from your own machine: ssh -L {0}:127.0.0.1:{0} THIS_HOST, then open the address",
             server.port());
  if (opened) opened();
  std::fflush(stdout);
  while (!ShutdownSignals::received()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  server.shutdown(kShutdownTime_s);
}

}  // namespace kintsugi
