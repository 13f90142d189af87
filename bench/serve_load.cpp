// Many clients of a running `kintsugi serve`, most of them unpleasant: slow readers, half-sent
// requests, clients that leave, oversized and damaged bodies. Checks that everyone who behaves is
// answered, that all slots are free at the end and that memory does not grow.
//
//   kintsugi serve --checkpoint DIR --port 8000 & bench_serve_load --port 8000 --pid $! --time 60
#include "support/serve_load.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace kintsugi {
namespace {

// MiB of a process; 0 if it is gone.
double resident_mib(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  double pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE)) / (1 << 20);
}

// A value of /metrics; -1 if the server does not answer.
double metric(int port, const std::string& name) {
  std::istringstream lines(http_get(port, "/metrics").body);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name + " ")) return std::stod(line.substr(name.size()));
  return -1;
}

int run(int argc, char** argv) {
  CLI::App app("Load test of kintsugi serve");
  LoadOptions options;
  int pid = 0;
  app.add_option("--port", options.port, "Of the server, on this machine")->required();
  app.add_option("--pid", pid, "Of the server, to watch its memory")->required();
  app.add_option("--clients", options.clients)->capture_default_str();
  app.add_option("--time", options.time_s, "Seconds")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  LoadOptions warm_up = options;
  warm_up.time_s = std::min(10.0, options.time_s / 4);
  ServeLoad(warm_up).run();
  const double before = resident_mib(pid);
  const LoadReport report = ServeLoad(options).run();
  double open = -1;
  for (int i = 0; i < 300 && open != 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    open = metric(options.port, "kintsugi_sequences_open");
  }
  const double after = resident_mib(pid);
  for (const auto& [name, count] : report.counts)
    std::printf("%-28s %8lld\n", name.c_str(), static_cast<long long>(count));
  std::printf("%-28s %8.0f\n", "requests/s", static_cast<double>(report.requests) / options.time_s);
  std::printf("%-28s %8lld\n", "unanswered", static_cast<long long>(report.unanswered));
  std::printf("%-28s %8.0f\n", "sequences open at the end", open);
  std::printf("%-28s %8.0f\n", "connections at the end",
              metric(options.port, "kintsugi_connections"));
  std::printf("memory %.1f MiB after %.0f s, %.1f MiB at the end\n", before, warm_up.time_s, after);
  const bool good = report.unanswered == 0 && open == 0 && after < before + 32;
  std::puts(good ? "passed" : "FAILED");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace kintsugi

int main(int argc, char** argv) { return kintsugi::run(argc, argv); }
