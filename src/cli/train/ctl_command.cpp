#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/units.h"
#include "report/runs/json_members.h"
#include "report/runs/run_file.h"
#include "report/runs/run_status.h"
#include "train/control_request.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr auto kCtlLook = std::chrono::milliseconds(100);
constexpr std::size_t kMostEvents = 1 << 16;

struct CtlArguments {
  std::string run;
  std::vector<std::string> set = {};
  bool checkpoint = false, evaluate = false;
  std::string wait = "1min";
};

ControlRequest control_request_of(const CtlArguments& arguments) {
  ControlRequest request{.checkpoint = arguments.checkpoint, .evaluate = arguments.evaluate};
  for (const std::string& text : arguments.set) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos) user_error("--set {}: there is no '='", text);
    request.set.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  if (request == ControlRequest{}) user_error("give --set, --checkpoint or --evaluate");
  return request;
}

// The last of events.jsonl about requests.
struct ControlEvent {
  bool refused = false;
  std::string text = {};
};
ControlEvent last_control_event(const fs::path& run) {
  ControlEvent last;
  for (const std::string& line : read_tail(resolved(run) / "events.jsonl", kMostEvents).lines) {
    const auto json = parse_untrusted_json(line);
    if (!json) continue;
    const std::string event = text_at(*json, "event");
    if (event != kControlEvent && event != kControlRefused) continue;
    last = {event == kControlRefused,
            fmt::format("step {}: {}", count_at(*json, "step"), text_at(*json, "message"))};
  }
  return last;
}

void run_ctl(const CtlArguments& arguments) {
  const fs::path run = arguments.run;
  const ControlRequest request = control_request_of(arguments);
  const std::string state = read_run_status(run).state;
  if (state != "running")
    user_error("{} does not run{}", run.string(), state.empty() ? "" : ": it is " + state);
  const fs::path config = run / "config.yaml", file = control_file(run);
  check_control(parse_run_config(read_text_file(config), config.string()), request);
  if (fs::exists(file)) user_error("{} waits for the run: try again later", file.string());
  const double wait_s = parse_duration_s(arguments.wait);
  const std::string text = to_json(request);
  NewFile asked(file, {.own_temporary = true, .replaces = false});
  asked.write(text.data(), text.size());
  asked.publish();
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait_s);
  while (fs::exists(file)) {
    if (std::chrono::steady_clock::now() > end)
      return fmt::print("asked {}; events.jsonl will say when it was done\n", run.string());
    std::this_thread::sleep_for(kCtlLook);
  }
  const ControlEvent event = last_control_event(run);
  if (event.refused) user_error("{}", event.text);
  fmt::print("{}\n", printable(event.text));
}

}  // namespace

void add_ctl_command(CLI::App& app) {
  auto arguments = std::make_shared<CtlArguments>();
  CLI::App* command = app.add_subcommand("ctl", "Change a run while it trains");
  const AddOption add(*command);
  add("run", arguments->run, "The directory of the run", kRequired);
  add("--set", arguments->set,
      "Change a value from the next step on: optimizer.lr, optimizer.min_lr, "
      "train.checkpoint_every, train.eval_every or train.log_every (repeatable)",
      TypeName{"KEY=VALUE"}, kRepeatable);
  add("--checkpoint", arguments->checkpoint, "Save a checkpoint after the current step");
  add("--evaluate", arguments->evaluate, "Validate, and score train.eval_tasks, after this step");
  add("--wait", arguments->wait, "How long to wait for the run to obey", TypeName{"TIME"},
      duration(between(0, 1e9)), kShowDefault);
  command->footer(
      "Examples:\n"
      "  kintsugi ctl runs/mine --set optimizer.lr=2e-4\n"
      "  kintsugi ctl runs/mine --checkpoint --evaluate\n"
      "\n"
      "All ranks obey after the same step. A change holds when the run is resumed: "
      "docs/recovery.md.");
  command->callback([arguments] { run_ctl(*arguments); });
}

}  // namespace kintsugi
