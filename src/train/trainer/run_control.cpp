#include "train/trainer/run_control.h"

#include <algorithm>
#include <limits>

#include "comm/exchange.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr auto kControlInterval = std::chrono::seconds(1);  // between looks at the file
constexpr std::size_t kMostControlBytes = 1 << 16;

}  // namespace

RunControl::RunControl(RunContext& run) : run_(run), given_(run.config) {}

void RunControl::read_history() {
  Communicator& host = run_.host();
  std::string text;
  together(host, [&] {
    const fs::path file = control_history(run_.directory);
    if (!run_.is_first()) return;
    if (std::error_code unknown; fs::exists(control_file(run_.directory), unknown)) {
      log_warning("{} is removed: it was asked of a process that has ended",
                  control_file(run_.directory).string());
      remove_request();
    }
    if (!fs::exists(file)) return;
    text = read_text_file(file);
    text.resize(text.rfind('\n') + 1);  // without a line that a crash has cut
    parse_control_history(text, file.string());
  });
  changes_ = parse_control_history(text_of(host, 0, text), control_history("").string());
  if (changes_.empty()) return;
  set_values(controlled(given_, changes_, std::numeric_limits<std::int64_t>::max()));
  log_info("kintsugi ctl has changed this run: {} says what, and when",
           control_history(run_.directory).string());
}

void RunControl::set_values(const StageConfig& now) {
  run_.config.optimizer.lr = now.optimizer.lr;
  run_.config.optimizer.min_lr = now.optimizer.min_lr;
  run_.config.train.checkpoint_every = now.train.checkpoint_every;
  run_.config.train.eval_every = now.train.eval_every;
  run_.config.train.log_every = now.train.log_every;
  run_.schedule.lr = now.optimizer.lr;
  run_.schedule.min_lr = now.optimizer.min_lr;
}

void RunControl::settle() {
  if (!changes_.empty()) set_values(controlled(given_, changes_, run_.state.step));
}

double RunControl::asks() {
  taken_ = {};
  if (!run_.is_first()) return 0;
  const Clock::time_point now = Clock::now();
  if (now < next_look_) return 0;
  next_look_ = now + kControlInterval;
  std::error_code unknown;
  return fs::exists(control_file(run_.directory), unknown) ? 1 : 0;
}

void RunControl::note(const char* event, const std::string& message) const {
  log_info("step {}: {}: {}", run_.state.step, event, message);
  if (RunEvents* events = run_.events()) events->add(event, run_.state.step, message);
}

void RunControl::change(const ControlRequest& request) {
  std::string lines;
  for (const auto& [key, value] : request.set) {
    changes_.push_back({run_.state.step, run_.config.stage, key, value});
    lines += to_line(changes_.back());
  }
  if (run_.is_first() && !lines.empty()) {
    drop_partial_line(control_history(run_.directory));
    append_to_file(control_history(run_.directory), lines);
  }
  settle();
}

// What the file asks for, if this run can do it. On rank 0.
std::string RunControl::accepted_text() const {
  const fs::path file = control_file(run_.directory);
  if (fs::is_symlink(file) || !fs::is_regular_file(file) || fs::file_size(file) > kMostControlBytes)
    user_error("{} is no request of kintsugi ctl", file.string());
  const std::string text = read_text_file(file);
  const ControlRequest request = control_request_from_json(text, file.string());
  check_control(run_.config, request);
  if (request.profile_steps > 0) {
    if (run_.profile == nullptr)
      user_error("this run records no profiles: start it with --profile on-request");
    run_.profile->check_ask();
  }
  return text;
}

void RunControl::remove_request() const {
  std::error_code error;
  fs::remove_all(control_file(run_.directory), error);
  if (error)
    log_warning("cannot remove {}: {}", control_file(run_.directory).string(), error.message());
}

void RunControl::close() {
  std::error_code unknown;
  if (!run_.is_first() || !fs::exists(control_file(run_.directory), unknown)) return;
  note(kControlRefused, run_.finished() && run_.config.steps_after() > 0
                            ? "the stage has ended: ask the next one"
                            : "the run has ended");
  remove_request();
}

void RunControl::take_request() {
  // The run continues from an earlier checkpoint, and reaches the step of a change again.
  if (std::any_of(changes_.begin(), changes_.end(),
                  [&](const ControlChange& one) { return one.step == run_.state.step; }))
    settle();
  if (!asked_) return;
  asked_ = false;
  std::string text, refusal;
  if (run_.is_first()) try {
      text = accepted_text();
    } catch (const std::exception& error) {
      refusal = error.what();
    }
  text = text_of(run_.host(), 0, text);
  if (text.empty()) {
    if (run_.is_first()) note(kControlRefused, printable(refusal));
  } else {
    taken_ = control_request_from_json(text, control_file("").string());
    change(taken_);
    if (taken_.profile_steps > 0) run_.profile->ask(taken_.profile_steps);
    if (run_.is_first()) note(kControlEvent, printable(taken_.text()));
  }
  if (run_.is_first()) remove_request();
}

}  // namespace kintsugi
