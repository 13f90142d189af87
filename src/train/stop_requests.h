#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "comm/rank_failure.h"

namespace kintsugi {

// While this object exists, SIGTERM, SIGUSR1, SIGINT and SIGHUP ask the run to finish its step,
// save and stop; a second SIGINT ends the process at once. SIGPIPE is ignored: Ctrl-C also kills
// `| tee`, and a line that cannot be printed must not prevent the checkpoint. The destructor
// restores the previous handlers. Objects may be nested; the outermost counts.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The signal's name, or nullptr while none has arrived.
  static const char* received();
};

// Sets a callback that runs, in another thread, before a second SIGINT ends the process; a third
// SIGINT does not wait for it. An empty function: none.
void before_second_interrupt(std::function<void()> callback);

// Asks the run of this process to finish its step, save and stop, as a signal does. `reason` is the
// reason in status.json, such as "supervisor lost". Thread-safe. The first request counts, also one
// that arrives before the run; the destructor of the outermost StopSignals forgets it.
void request_stop(const std::string& reason);
std::string requested_stop();  // the reason; empty while nothing has been requested

// The end of the job in seconds since 1970: the earliest of KINTSUGI_END_TIME (set by job scripts)
// or else SLURM_JOB_END_TIME, and of `launched_s` + `limit_s`. A limit of 0 is no limit. UserError
// if a variable is not a number.
std::optional<double> end_of_job(double launched_s, double limit_s);

// The time by which a run must begin its last save. It leaves a margin before the end of the job
// for one save, which training waits for, two steps and leaving the program, and also for the end
// of a save in the background that is under way.
class WallTime {
 public:
  static constexpr double kExit_s = 30;             // to leave the program
  static constexpr double kUnmeasuredSave_s = 60;   // before the first save of a run
  static constexpr std::size_t kRecentSteps = 100;  // of which the longest counts

  WallTime() = default;  // no limit
  // `fixed_margin_s`: instead of a measured margin; 0: measure it.
  WallTime(double end_s, double fixed_margin_s) : end_s_(end_s), fixed_margin_s_(fixed_margin_s) {}

  void note_step(double seconds);  // also: a validation
  void note_save(double seconds, bool background = false) {
    (background ? background_save_s_ : save_s_) = seconds;
  }
  void set_save_under_way(bool under_way) { under_way_ = under_way; }  // in the background
  double margin_s() const;
  double left_s(double now_s) const { return end_s_ - now_s; }  // until the end of the job
  bool limited() const { return end_s_ < std::numeric_limits<double>::infinity(); }
  bool is_over(double now_s) const { return left_s(now_s) <= margin_s(); }

 private:
  double end_s_ = std::numeric_limits<double>::infinity();
  double fixed_margin_s_ = 0;
  std::optional<double> save_s_, background_save_s_;  // of the last ones
  bool under_way_ = false;
  std::deque<double> steps_;
};

// Everything that asks a run to stop before its last step. Each rank adds ask() to the all-reduce
// of the step and gives the sum to decide(), so all ranks stop after the same step. Signals and
// request_stop() count on every rank; only rank 0 looks at the stop file and the clock.
class StopRequests {
 public:
  using Clock = std::function<double()>;  // in seconds
  struct Options {
    std::filesystem::path file = {};  // empty: on ranks other than 0
    WallTime wall_time = {};          // on the scale of `clock`
    Clock clock = {};                 // default: a steady clock
  };
  StopRequests() : StopRequests(Options{}) {}
  explicit StopRequests(Options options);

  double ask();
  void decide(double sum_of_asks);
  bool decided() const { return cause_ != StopCause::None; }
  StopCause cause() const { return cause_; }
  // For status.json: "signal", "stop file", "wall time" or the reason of request_stop(). Empty if
  // nothing has been decided.
  std::string reason() const;
  std::string description() const;  // "SIGTERM", "the stop file runs/demo/stop", …
  // Removes the stop file that was obeyed. Call it once the state is saved.
  void consume_file() const;

  WallTime& wall_time() { return wall_time_; }
  double now_s() const { return clock_(); }

 private:
  // The causes count in their order. Only one rank asks because of a file or the time.
  static double weight(StopCause cause);
  StopCause cause_here();
  bool file_exists();

  std::filesystem::path file_;
  WallTime wall_time_;
  Clock clock_;
  double next_look_s_ = -std::numeric_limits<double>::infinity();
  bool file_found_ = false;
  StopCause cause_ = StopCause::None;
};

}  // namespace kintsugi
