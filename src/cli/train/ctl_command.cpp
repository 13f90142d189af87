#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json_members.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/units.h"
#include "report/runs/run_file.h"
#include "report/runs/run_status.h"
#include "train/control_request.h"
#include "train/step_profile.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr auto kCtlLook = std::chrono::milliseconds(100);
constexpr std::size_t kMostEvents = 1 << 16;

struct CtlArguments {
  std::string run;
  std::vector<std::string> set = {};
  bool checkpoint = false, evaluate = false;
  std::int64_t profile_steps = 0;
  std::string wait = "1min";
};

ControlRequest control_request_of(const CtlArguments& arguments) {
  ControlRequest request{.checkpoint = arguments.checkpoint,
                         .evaluate = arguments.evaluate,
                         .profile_steps = arguments.profile_steps};
  for (const std::string& text : arguments.set) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos) user_error("--set {}: there is no '='", text);
    request.set.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  if (request == ControlRequest{}) user_error("give --set, --checkpoint, --evaluate or --profile");
  return request;
}

// The last of events.jsonl about requests.
struct ControlEvent {
  bool refused = false;
  std::string text = {}, line = {};
};
ControlEvent last_control_event(const fs::path& run) {
  ControlEvent last;
  for (const std::string& line : read_tail(resolved(run) / "events.jsonl", kMostEvents).lines) {
    const auto json = parse_untrusted_json(line);
    if (!json) continue;
    const std::string event = text_at(*json, "event");
    if (event != kControlEvent && event != kControlRefused) continue;
    last = {event == kControlRefused,
            fmt::format("step {}: {}", count_at(*json, "step"), text_at(*json, "message")), line};
  }
  return last;
}

void check_that_it_runs(const fs::path& run) {
  const std::string state = read_run_status(run).state;
  if (state != "running")
    user_error("{} does not run{}", run.string(), state.empty() ? "" : ": it is " + state);
}

// With what was changed before. Which stage a run is in, and whether this stage can obey, only the
// run knows.
void check_request(const fs::path& run, const ControlRequest& request) {
  const fs::path file = run / "config.yaml", history = control_history(run);
  const RunConfig config = parse_run_config(read_text_file(file), file.string());
  if (!config.stages.empty()) {
    StageConfig any = config;
    for (const auto& [key, value] : request.set) apply_control(any, key, value);
    return;
  }
  std::string changes = fs::exists(history) ? read_text_file(history) : "";
  changes.resize(changes.rfind('\n') + 1);  // without a line that is being written
  check_control(controlled(config, parse_control_history(changes, history.string()),
                           std::numeric_limits<std::int64_t>::max()),
                request);
}

void run_ctl(const CtlArguments& arguments) {
  const fs::path run = arguments.run, file = control_file(run);
  const ControlRequest request = control_request_of(arguments);
  check_that_it_runs(run);
  check_request(run, request);
  if (fs::exists(file)) user_error("{} waits for the run: try again later", file.string());
  const double wait_s = parse_duration_s(arguments.wait);
  const std::string before = last_control_event(run).line;
  const std::string text = to_json(request);
  NewFile asked(file, {.own_temporary = true, .replaces = false});
  asked.write(text.data(), text.size());
  asked.publish();
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait_s);
  while (fs::exists(file)) {
    if (std::chrono::steady_clock::now() > end)
      return fmt::print("asked {}; events.jsonl will say when it was done\n", run.string());
    if (read_run_status(run).state != "running" && fs::remove(file)) check_that_it_runs(run);
    std::this_thread::sleep_for(kCtlLook);
  }
  const ControlEvent event = last_control_event(run);
  if (event.line == before)
    user_error("{} has started again before it obeyed: ask again", run.string());
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
  add("--profile", arguments->profile_steps,
      "Record this many steps, of a run that was started with --profile on-request",
      TypeName{"STEPS"}, whole_number(between(1, kMostProfiledSteps)));
  add("--wait", arguments->wait, "How long to wait for the run to obey", TypeName{"TIME"},
      duration(between(0, 1e9)), kShowDefault);
  command->footer(
      "Examples:\n"
      "  kintsugi ctl runs/mine --set optimizer.lr=2e-4\n"
      "  kintsugi ctl runs/mine --checkpoint --evaluate\n"
      "  kintsugi ctl runs/mine --profile 2\n"
      "\n"
      "All ranks obey after the same step. A change holds when the run is resumed: "
      "docs/recovery.md.");
  command->callback([arguments] { run_ctl(*arguments); });
}

}  // namespace kintsugi
