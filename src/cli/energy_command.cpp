#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/energy_output.h"
#include "cli/foreground_child.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/units.h"
#include "energy/meters/meter_total.h"
#include "train/stop_requests.h"

namespace kintsugi {
namespace {

struct EnergyArguments {
  std::string root = "/", program, seconds = "5", interval = "0.2";
  double node_w = 0;
  bool list = false, json = false;
};

// Reads all meters now and then, from its construction to the last sample().
class MeterWindow {
 public:
  explicit MeterWindow(const FoundMeters& found) : found_(found) {
    for (const auto& meter : found.meters) totals_.emplace_back(meter->identity());
    sample();
  }

  void sample() {
    for (std::size_t i = 0; i < totals_.size(); ++i) {
      try {
        const MeterReading reading = found_.meters[i]->read();
        totals_[i].add(reading, elapsed_s());
      } catch (const std::exception& error) {
        totals_[i].add_failure(error.what(), elapsed_s());
      }
    }
    last_s_ = elapsed_s();
  }
  double elapsed_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  MeteredWindow result() const { return {.seconds = last_s_, .totals = totals_}; }

 private:
  const FoundMeters& found_;
  std::vector<MeterTotal> totals_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double last_s_ = 0;
};

// Ctrl-C ends the window early.
void wait_for_window(double seconds, double interval_s, MeterWindow& window) {
  const StopSignals signals;
  Progress progress("read the meters", static_cast<std::int64_t>(seconds), "seconds");
  while (StopSignals::received() == nullptr) {
    const double left_s = seconds - window.elapsed_s();
    if (left_s <= 0) break;
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left_s, interval_s)));
    window.sample();
    progress.set(static_cast<std::int64_t>(window.elapsed_s()));
  }
}

// Returns the exit code of the command.
int wait_for_command(const std::vector<std::string>& command, double interval_s,
                     MeterWindow& window) {
  ForegroundChild child(command);
  while (!child.wait(interval_s)) window.sample();
  window.sample();
  return child.code();
}

void run_energy(const EnergyArguments& arguments, const std::vector<std::string>& command) {
  std::error_code error;
  if (!std::filesystem::is_directory(arguments.root, error))
    user_error("--root {}: no such directory; it holds sys/… as on a machine", arguments.root);
  const MeterSearch search{.root = arguments.root, .node_w = arguments.node_w};
  const FoundMeters found = find_meters(search);
  const NodeShare share = find_node_share(search.root);
  const EnergyView view{found, choose_meters(found, search, share), share};
  if (arguments.list) {
    log_message(LogLevel::Info, arguments.json ? list_json(view) : list_text(view));
    return;
  }
  MeterWindow window(found);
  const double interval_s = parse_duration_s(arguments.interval);
  int code = 0;
  if (command.empty())
    wait_for_window(parse_duration_s(arguments.seconds), interval_s, window);
  else
    code = wait_for_command(command, interval_s, window);
  // The standard output of a command is its own.
  log_message(
      command.empty() ? LogLevel::Info : LogLevel::Note,
      arguments.json ? window_json(view, window.result()) : window_text(view, window.result()));
  if (code != 0) throw CLI::RuntimeError(code);
}

}  // namespace

void add_energy_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "energy", "Measure the joules of this node, of its CPUs and GPUs, or of a command");
  const auto arguments = std::make_shared<EnergyArguments>();
  CLI::Option* list =
      command->add_flag("--list", arguments->list, "List the meters, and why others are not there");
  command
      ->add_option("--root", arguments->root,
                   "Read sys/… below this directory, such as a recorded tree (default: /)")
      ->type_name("DIR");
  CLI::Option* seconds = command
                             ->add_option("--seconds", arguments->seconds,
                                          "How long to measure: 60, 2min, 1h (default: 5 s); "
                                          "Ctrl-C ends it early")
                             ->type_name("TIME")
                             ->transform(duration(Range{.low = 0, .high = 1e7, .low_open = true}))
                             ->excludes(list);
  command
      ->add_option("--interval", arguments->interval, "Time between two readings (default: 0.2 s)")
      ->type_name("TIME")
      ->transform(duration(between(0.01, 2)));
  command
      ->add_option("--node-w", arguments->node_w,
                   "Watts of the whole node, for an estimate if nothing measures it")
      ->transform(real_number(between(0, 1e6)));
  command->add_flag("--json", arguments->json, "Print a JSON object");
  command
      ->add_option("command", arguments->program,
                   "After --: run this command and measure until it ends")
      ->type_name("COMMAND")
      ->excludes(list)
      ->excludes(seconds);
  command->prefix_command();  // the words after COMMAND are its own, as they are
  command->footer(
      "Examples:\n"
      "  kintsugi energy --list\n"
      "  kintsugi energy --seconds 60 --json\n"
      "  kintsugi energy -- ./benchmark --size 4\n"
      "  kintsugi energy --root recorded/node7 --seconds 5 --json\n"
      "\n"
      "With a command, the joules are printed to standard error, and the exit code is that of\n"
      "the command. docs/energy.md explains the meters.");
  command->callback([arguments, command] {
    std::vector<std::string> words = command->remaining();
    if (arguments->program.empty() && words == std::vector<std::string>{"--"})
      user_error("a command is missing after --, for example: kintsugi energy -- ./program -x");
    // Without -- before it, a word that begins with - is a misspelt option, and what follows is its
    // value: that must not be run.
    const bool marked = !words.empty() && words.front() == "--";
    const bool option = std::any_of(words.begin(), words.end(),
                                    [](const std::string& word) { return word.starts_with("-"); });
    if (!words.empty() && !marked && (arguments->program.empty() || option))
      throw CLI::ExtrasError("energy", words);
    if (!words.empty() && words.front() == "--") words.erase(words.begin());
    if (!arguments->program.empty()) words.insert(words.begin(), arguments->program);
    run_energy(*arguments, words);
  });
}

}  // namespace kintsugi
