#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/process.h"
#include "core/log.h"
#include "core/units.h"
#include "http/http_server.h"
#include "report/dashboard/dashboard_service.h"
#include "report/profile/profile_output.h"

namespace kintsugi {
namespace {

constexpr double kShutdownTime_s = 2;
constexpr std::size_t kMostNotes = 10;

struct DashboardArguments {
  std::vector<std::string> folders;
  std::string token;
  HttpServerOptions server{.port = 8080,
                           .max_connections = 128,
                           .connection = {.max_body = 4096, .reply_timeout_s = 3600}};
};

void print_address(const HttpServer& server, const DashboardService& service, bool has_token) {
  log_info("{}: http://{}/{}", format_number(static_cast<std::int64_t>(service.run_count()), "run"),
           server.address(), has_token ? "?token=TOKEN" : "");
  if (server.is_local() && std::getenv("SSH_CONNECTION") != nullptr)
    log_info("from your own machine: ssh -L {0}:127.0.0.1:{0} THIS_HOST, then open the address",
             server.port());
  const std::vector<SkippedFile> skipped = service.skipped();
  for (std::size_t i = 0; i < std::min(skipped.size(), kMostNotes); ++i)
    log_note("skipped {}: {}", printable(skipped[i].path.string()), skipped[i].why);
  if (skipped.size() > kMostNotes) log_note("skipped more; the page lists them");
  std::fflush(stdout);
}

void show_dashboard(const DashboardArguments& a) {
  const ShutdownSignals signals;
  const std::string token = or_variable(a.token, "KINTSUGI_DASHBOARD_TOKEN");
  DashboardService service({.folders = {a.folders.begin(), a.folders.end()},
                            .token = token,
                            .profile_json = profile_page_json});
  HttpServer server(service, a.server);
  if (!server.is_local() && token.empty())
    log_warning(
        "other machines can connect and no token is set: anyone who reaches {} can read the runs; "
        "set --token or KINTSUGI_DASHBOARD_TOKEN",
        server.address());
  print_address(server, service, !token.empty());
  while (!ShutdownSignals::received()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  server.shutdown(kShutdownTime_s);
}

}  // namespace

void add_dashboard_command(CLI::App& app) {
  const auto a = std::make_shared<DashboardArguments>();
  CLI::App* command = app.add_subcommand(
      "dashboard", "Show the runs below folders in a web page, live while they train");
  const AddOption add(*command);
  add("folders", a->folders, "Folders with runs, or run directories", TypeName{"DIR"}, kRequired);
  add("--host", a->server.host, "The address to listen on; 0.0.0.0: every network of this machine",
      kShowDefault);
  add("--port", a->server.port, "The port; 0: a free one, which is printed",
      whole_number(between(0, 65535)), kShowDefault);
  add("--token", a->token,
      "Browsers must give this token (?token=TOKEN in the address). Other users of the machine see "
      "options; the environment variable KINTSUGI_DASHBOARD_TOKEN hides it")
      ->check([](const std::string& token) { return token.empty() ? "--token is empty" : ""; });
  command->footer(
      "The dashboard only reads. Ctrl-C ends it. /metrics has the metrics of all runs for "
      "Prometheus.\n\nExamples:\n"
      "  kintsugi dashboard runs\n"
      "  kintsugi dashboard runs /scratch/sweep --port 0\n"
      "  KINTSUGI_DASHBOARD_TOKEN=secret kintsugi dashboard runs --host 0.0.0.0");
  command->callback([a] { show_dashboard(*a); });
}

}  // namespace kintsugi
