#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/report/terminal_screen.h"
#include "core/error.h"
#include "core/log.h"
#include "core/units.h"
#include "report/watch/frame.h"
#include "report/watch/run_watch.h"
#include "train/stop_requests.h"

namespace kintsugi {
namespace {

struct WatchOptions {
  std::vector<std::string> folders;
  std::string every = "2s";
  bool once = false;
};

bool wants_colours() {
  const char* const refused = std::getenv("NO_COLOR");
  return TerminalScreen::is_available() && (refused == nullptr || *refused == '\0');
}

FrameOptions frame_options() {
  const TerminalSize size = terminal_size();
  return {.columns = size.columns, .rows = size.rows, .colours = wants_colours()};
}

void read_panels(RunWatch& watch, std::vector<WatchedRun>& runs, const FrameOptions& options) {
  for (const std::size_t i : runs_with_panel(runs.size(), options)) watch.read_details(runs[i]);
}

void print_frame(RunWatch& watch, const std::vector<std::string>& folders) {
  const FrameOptions options = frame_options();
  std::vector<WatchedRun> runs = watch.look();
  read_panels(watch, runs, options);
  if (runs.empty())
    user_error("there is no run in {}; give run directories (run.dir) or folders of them",
               folders.front());
  std::vector<std::string> lines = watch_frame(runs, options);
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  for (const std::string& line : lines) fmt::print("{}\n", line);
}

void sleep_or_stop(double seconds) {
  using SleepClock = std::chrono::steady_clock;
  const auto end = SleepClock::now() + std::chrono::duration<double>(seconds);
  while (SleepClock::now() < end && StopSignals::received() == nullptr)
    std::this_thread::sleep_for(std::min<std::chrono::duration<double>>(
        end - SleepClock::now(), std::chrono::milliseconds(100)));
}

// Without a terminal: a line for each run that has changed, until none is running any more.
void print_changes(RunWatch& watch, double every_s) {
  using Shown = std::tuple<std::string, bool, std::optional<double>, std::optional<double>>;
  std::map<std::string, Shown> shown;
  const StopSignals signals;
  while (StopSignals::received() == nullptr && lost_output() == 0) {
    const std::vector<WatchedRun> runs = watch.look();
    for (const WatchedRun& run : runs) {
      const RunSummary& s = run.summary;
      const Shown now = {s.state, s.stalled, s.step, s.valid_loss};
      if (const auto before = shown.find(s.id); before != shown.end() && before->second == now)
        continue;
      shown[s.id] = now;
      log_info("{}", watch_line(run));
    }
    const auto ended = [](const WatchedRun& run) { return run.ended(); };
    if (!runs.empty() && std::all_of(runs.begin(), runs.end(), ended)) return;
    sleep_or_stop(every_s);
  }
}

// On a terminal: the last row lists the keys.
class LiveView {
 public:
  LiveView(RunWatch& watch, double every_s) : watch_(watch), every_s_(every_s) {}

  void run() {
    using Event = TerminalScreen::Event;
    look();
    while (true) {
      draw();
      switch (screen_.wait(every_s_)) {
        case Event::Ended:
        case Event::Quit:
          return;
        case Event::Next:
          choose(1);
          break;
        case Event::Previous:
          choose(runs_.size() - 1);
          break;
        case Event::Logarithmic:
          logarithmic_ = !logarithmic_;
          break;
        case Event::Resized:
        case Event::Timeout:
          break;
      }
      look();
    }
  }

 private:
  FrameOptions options() const {
    FrameOptions options = frame_options();
    options.rows = std::max(options.rows - 1, 1);
    options.logarithmic = logarithmic_;
    options.chosen = chosen();
    return options;
  }
  // By its name: runs change their places when they end.
  std::size_t chosen() const {
    const auto found = std::find_if(runs_.begin(), runs_.end(), [this](const WatchedRun& run) {
      return run.summary.id == chosen_;
    });
    return found == runs_.end() ? 0 : static_cast<std::size_t>(found - runs_.begin());
  }
  void look() {
    runs_ = watch_.look();
    read_panels(watch_, runs_, options());
  }
  void choose(std::size_t further) {
    if (runs_.empty()) return;
    chosen_ = runs_[(chosen() + further) % runs_.size()].summary.id;
  }
  void draw() {
    std::vector<std::string> lines = watch_frame(runs_, options());
    std::string keys = "q quit   l logarithmic axes";
    if (runs_.size() > 1) keys += "   tab or arrows: next run";
    lines.push_back(keys.substr(0, static_cast<std::size_t>(options().columns)));
    screen_.show(lines);
  }

  RunWatch& watch_;
  double every_s_;
  TerminalScreen screen_;
  std::vector<WatchedRun> runs_;
  std::string chosen_;  // RunSummary::id; empty: the first one
  bool logarithmic_ = false;
};

void watch_runs(const WatchOptions& options) {
  RunWatch watch({options.folders.begin(), options.folders.end()});
  const double every_s = parse_duration_s(options.every);
  if (options.once) return print_frame(watch, options.folders);
  if (!TerminalScreen::is_available()) return print_changes(watch, every_s);
  LiveView(watch, every_s).run();
}

}  // namespace

void add_watch_command(CLI::App& app) {
  const auto options = std::make_shared<WatchOptions>();
  CLI::App* command = app.add_subcommand(
      "watch", "Show runs live in the terminal: progress, loss, speed, goodput and log");
  const AddOption add(*command);
  add("runs", options->folders,
      "Run directories (run.dir), or folders of them, also of other nodes", TypeName{"DIR"},
      kRequired);
  CLI::Option* every = add("--every", options->every, "Time between two looks (default: 2 s)",
                           TypeName{"TIME"}, duration(between(0.1, 3600)));
  add("--once", options->once, "Print one frame and exit")->excludes(every);
  command->footer(
      "Examples:\n"
      "  kintsugi watch runs/demo\n"
      "  kintsugi watch runs\n"
      "  kintsugi watch runs/a runs/b --every 10s\n"
      "  kintsugi watch runs/demo --once\n"
      "\n"
      "Keys: q quits, tab and arrows choose a run, l switches to logarithmic axes.\n"
      "Without a terminal it prints a line whenever a run changes, until none is running.\n"
      "docs/reports.md explains what is shown.");
  command->callback([options] { watch_runs(*options); });
}

}  // namespace kintsugi
