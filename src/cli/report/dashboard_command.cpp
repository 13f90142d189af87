#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/process.h"
#include "cli/report/page_server.h"
#include "core/log.h"
#include "core/units.h"
#include "report/dashboard/dashboard_service.h"
#include "report/profile/profile_output.h"

namespace kintsugi {
namespace {

constexpr std::size_t kMostNotes = 10;

struct DashboardArguments {
  std::vector<std::string> folders;
  PageServer server;
};

void print_skipped(const DashboardService& service) {
  const std::vector<SkippedFile> skipped = service.skipped();
  for (std::size_t i = 0; i < std::min(skipped.size(), kMostNotes); ++i)
    log_note("skipped {}: {}", printable(skipped[i].path.string()), skipped[i].why);
  if (skipped.size() > kMostNotes) log_note("skipped more; the page lists them");
}

void show_dashboard(const DashboardArguments& a) {
  const ShutdownSignals signals;
  DashboardService service({.folders = {a.folders.begin(), a.folders.end()},
                            .token = token_of(a.server),
                            .profile_json = profile_page_json});
  serve_page(service, a.server,
             format_number(static_cast<std::int64_t>(service.run_count()), "run"), "the runs",
             [&] { print_skipped(service); });
}

}  // namespace

void add_dashboard_command(CLI::App& app) {
  const auto a = std::make_shared<DashboardArguments>();
  CLI::App* command = app.add_subcommand(
      "dashboard", "Show the runs below folders in a web page, live while they train");
  const AddOption add(*command);
  add("folders", a->folders, "Folders with runs, or run directories", TypeName{"DIR"}, kRequired);
  add_page_server_options(add, a->server);
  command->footer(
      "The dashboard only reads. Ctrl-C ends it. /metrics has the metrics of all runs for "
      "Prometheus.\n\nExamples:\n"
      "  kintsugi dashboard runs\n"
      "  kintsugi dashboard runs /scratch/sweep --port 0\n"
      "  KINTSUGI_DASHBOARD_TOKEN=secret kintsugi dashboard runs --host 0.0.0.0");
  command->callback([a] { show_dashboard(*a); });
}

}  // namespace kintsugi
