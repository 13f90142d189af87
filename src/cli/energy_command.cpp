#include <fmt/format.h>

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
#include "cli/foreground_child.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/table.h"
#include "core/units.h"
#include "energy/meters/find_meters.h"
#include "energy/meters/meter.h"
#include "train/stop_requests.h"

namespace kintsugi {
namespace {

// What `kintsugi energy` prints, as text and as JSON.

struct EnergyView {
  const FoundMeters& found;
  ChosenMeters chosen;
  NodeShare share;
};

struct MeteredWindow {
  double seconds = 0;
  std::vector<MeterTotal> totals = {};  // of FoundMeters::meters, at the end of the window
};

using EnergyJson = nlohmann::ordered_json;

// Readings are some tenths of a second apart, and their time is that of the hardware.
constexpr double kUncoveredLimit_s = 0.3, kLostLimit_s = 0.02;

struct EnergyRow {
  std::string source = {}, scope = {}, kind = {};
  std::optional<double> joules = {}, watts = {};
  std::string note = {};
};

EnergyRow row_of(const EnergyView& view, const MeteredWindow& window, std::size_t i) {
  const MeterIdentity& identity = view.found.meters[i]->identity();
  const MeterTotal& total = window.totals[i];
  EnergyRow row{.source = identity.source,
                .scope = identity.scope,
                .kind = std::string(to_string(identity.kind))};
  // A lost interval is never left out silently; the ends of the window may be a little late.
  const bool lost = identity.kind != MeterKind::Estimate && !total.note().empty();
  const double allowed_s = lost ? kLostLimit_s : kUncoveredLimit_s;
  if (identity.level != EnergyLevel::Gpu && view.share.shared()) {
    row.note = view.share.reason();
  } else if (total.covered_s() > 0 && total.missed_s(window.seconds) <= allowed_s) {
    row.joules = total.joules();
    row.watts = total.joules() / total.covered_s();
    row.note = total.note();
  } else {
    row.note = fmt::format("{}; {:.1f} of {:.1f} s were metered: {:.0f} J",
                           !total.note().empty() ? total.note()
                           : identity.kind == MeterKind::Counter
                               ? "the counter was not updated until the end"
                               : "too few readings",
                           total.covered_s(), window.seconds, total.joules());
  }
  return row;
}

// Also of meters that are known but cannot be read.
std::vector<EnergyRow> rows_of(const EnergyView& view, const MeteredWindow& window) {
  std::vector<EnergyRow> rows;
  for (std::size_t i = 0; i < window.totals.size(); ++i) rows.push_back(row_of(view, window, i));
  for (const FoundMeters::Missing& missing : view.found.missing)
    if (!missing.scope.empty())
      rows.push_back({.source = missing.source, .scope = missing.scope, .note = missing.reason});
  return rows;
}

// The sum of a level; without joules if one of its meters has none or something is left out.
EnergyRow sum_of(const EnergyView& view, const std::vector<EnergyRow>& rows, EnergyLevel level) {
  const LevelMeters& chosen = view.chosen[level];
  EnergyRow sum{.source = chosen.source, .scope = std::string(to_string(level))};
  sum.note = chosen.meters.empty() ? chosen.reason : chosen.uncovered;
  if (!sum.note.empty()) return sum;
  sum.joules = sum.watts = 0;
  for (const std::size_t i : chosen.meters) {
    if (!rows[i].joules)
      return {
          .source = sum.source, .scope = sum.scope, .note = rows[i].scope + ": " + rows[i].note};
    *sum.joules += *rows[i].joules;
    *sum.watts += *rows[i].watts;
  }
  return sum;
}

EnergyJson or_null(const std::string& text) { return Cell::or_missing(text).value; }

Table meters_table(const FoundMeters& found) {
  Table table({Column::text("scope", "scope"), Column::text("source", "source"),
               Column::text("kind", "kind"), Column::text("where", "detail")});
  for (const auto& meter : found.meters) {
    const MeterIdentity& one = meter->identity();
    table.add({one.scope, one.source, to_string(one.kind), one.detail});
  }
  return table;
}

Table window_table(const std::vector<EnergyRow>& rows) {
  Table table({Column::text("scope", "scope"), Column::text("source", "source"),
               Column::text("kind", "kind"), Column::number("joules", "joules", "{:.1f}"),
               Column::number("watts", "watts", "{:.1f}"), Column::text("note", "note")});
  for (const EnergyRow& row : rows)
    table.add({row.scope,
               row.source,
               or_null(row.kind),
               row.joules,
               row.watts,
               {or_null(row.note), row.note}});
  return table;
}

// The sources that are not there at all.
EnergyJson missing_json(const FoundMeters& found, bool with_scopes) {
  EnergyJson list = EnergyJson::array();
  for (const FoundMeters::Missing& missing : found.missing) {
    if (!with_scopes && !missing.scope.empty()) continue;
    list.push_back({{"source", missing.source},
                    {"scope", or_null(missing.scope)},
                    {"reason", missing.reason}});
  }
  return list;
}

std::string missing_lines(const FoundMeters& found) {
  std::string text;
  for (const FoundMeters::Missing& missing : found.missing)
    text += fmt::format("  {}{}{}: {}\n", missing.source, missing.scope.empty() ? "" : " ",
                        missing.scope, missing.reason);
  return text;
}

std::string list_text(const EnergyView& view) {
  if (view.found.meters.empty()) return "no meter was found:\n" + missing_lines(view.found);
  std::string text = meters_table(view.found).text();
  text += "\nused for:\n";
  for (const EnergyLevel level : kEnergyLevels) {
    const LevelMeters& chosen = view.chosen[level];
    text += fmt::format("  {:<6}  {}{}\n", to_string(level),
                        chosen.meters.empty() ? "none: " + chosen.reason : chosen.source,
                        chosen.uncovered.empty() ? "" : ", without " + chosen.uncovered);
  }
  if (view.found.missing.empty()) return text;
  return text + "\nnot available:\n" + missing_lines(view.found);
}

std::string list_json(const EnergyView& view) {
  EnergyJson levels = EnergyJson::object();
  for (const EnergyLevel level : kEnergyLevels) {
    const LevelMeters& chosen = view.chosen[level];
    levels[std::string(to_string(level))] = {{"source", or_null(chosen.source)},
                                             {"reason", or_null(chosen.reason)},
                                             {"uncovered", or_null(chosen.uncovered)}};
  }
  return json_lines({{"meters", meters_table(view.found).json()},
                     {"levels", levels},
                     {"missing", missing_json(view.found, true)}});
}

std::string window_text(const EnergyView& view, const MeteredWindow& window) {
  const std::vector<EnergyRow> rows = rows_of(view, window);
  if (rows.empty()) return "no meter was found:\n" + missing_lines(view.found);
  std::string text = window_table(rows).text();
  for (const EnergyLevel level : kEnergyLevels) {
    const EnergyRow sum = sum_of(view, rows, level);
    if (!sum.joules) continue;
    text += fmt::format("{}: {:.1f} J, {:.1f} W ({})\n", sum.scope, *sum.joules, *sum.watts,
                        sum.source);
  }
  return text + fmt::format("in {:.2f} s", window.seconds);
}

std::string window_json(const EnergyView& view, const MeteredWindow& window) {
  const std::vector<EnergyRow> rows = rows_of(view, window);
  EnergyJson levels = EnergyJson::object();
  for (const EnergyLevel level : kEnergyLevels) {
    const EnergyRow sum = sum_of(view, rows, level);
    levels[sum.scope] = {{"source", or_null(sum.source)},
                         {"joules", Cell(sum.joules).value},
                         {"watts", Cell(sum.watts).value},
                         {"note", or_null(sum.note)}};
  }
  return json_lines({{"seconds", window.seconds},
                     {"meters", window_table(rows).json()},
                     {"levels", levels},
                     {"missing", missing_json(view.found, false)}});
}

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
  const auto show = [](LogLevel level, std::string text) {
    text.erase(text.find_last_not_of('\n') + 1);
    log_message(level, text);
  };
  if (arguments.list)
    return show(LogLevel::Info, arguments.json ? list_json(view) : list_text(view));
  MeterWindow window(found);
  const double interval_s = parse_duration_s(arguments.interval);
  int code = 0;
  if (command.empty())
    wait_for_window(parse_duration_s(arguments.seconds), interval_s, window);
  else
    code = wait_for_command(command, interval_s, window);
  // The standard output of a command is its own.
  show(command.empty() ? LogLevel::Info : LogLevel::Note,
       arguments.json ? window_json(view, window.result()) : window_text(view, window.result()));
  if (code != 0) throw CLI::RuntimeError(code);
}

}  // namespace

void add_energy_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "energy", "Measure the joules of this node, of its CPUs and GPUs, or of a command");
  const AddOption add(*command);
  const auto arguments = std::make_shared<EnergyArguments>();
  CLI::Option* list =
      add("--list", arguments->list, "List the meters, and why others are not there");
  add("--root", arguments->root,
      "Read sys/… below this directory, such as a recorded tree (default: /)", TypeName{"DIR"});
  CLI::Option* seconds =
      add("--seconds", arguments->seconds,
          "How long to measure: 60, 2min, 1h (default: 5 s); Ctrl-C ends it early",
          TypeName{"TIME"}, duration(Range{.low = 0, .high = 1e7, .low_open = true}))
          ->excludes(list);
  add("--interval", arguments->interval, "Time between two readings (default: 0.2 s)",
      TypeName{"TIME"}, duration(between(0.01, 2)));
  add("--node-w", arguments->node_w,
      "Watts of the whole node, for an estimate if nothing measures it",
      real_number(between(0, 1e6)));
  add("--json", arguments->json, "Print a JSON object");
  add("command", arguments->program, "After --: run this command and measure until it ends",
      TypeName{"COMMAND"})
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
