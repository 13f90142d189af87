#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/supervisor_link.h"
#include "launch/job_description.h"
#include "launch/recovery.h"

namespace kintsugi {

// If the node of the supervisor dies, nobody is left to restart the ranks, and with --no-kill Slurm
// keeps the job until its time limit. The deputy is a small process on another node of the job. It
// watches a file that the supervisor writes every few seconds, and puts the job back into the queue
// when that stops.

// The supervisor's side.
class DeputyKeeper {
 public:
  explicit DeputyKeeper(const JobDescription& job);
  ~DeputyKeeper();  // ends the deputy
  DeputyKeeper(const DeputyKeeper&) = delete;
  DeputyKeeper& operator=(const DeputyKeeper&) = delete;

  // Call it often: gives a sign of life, and starts a deputy on one of `nodes` if there is none.
  // `nodes`: of the job, without this one; those to prefer first. Without nodes there is none.
  void work(const std::vector<std::string>& nodes);

 private:
  using Clock = std::chrono::steady_clock;

  JobDescription job_;
  std::int64_t beats_ = 0;
  Clock::time_point next_beat_ = {};
  Clock::time_point next_start_ = {};
  pid_t deputy_ = 0;
};

// The deputy's side: returns when the supervisor has given no sign of life for `patience`, or when
// `ended` says that the job is over. Returns whether the supervisor was lost.
bool watch_supervisor(const std::filesystem::path& launch_directory,
                      std::chrono::duration<double> patience,
                      const std::function<bool()>& ended = {});
// `kintsugi launch --deputy RUN_DIR`: requeues the job of this process if the supervisor is lost.
int run_deputy(const std::filesystem::path& run_dir);

struct SupervisorOptions {
  RecoveryLimits limits = {};
  StartLimits start = {};
  // Rank 0 without a sign of life. Default: comm.silence_s and 3 s.
  std::optional<double> silence_s = {};
  double stall_s = 7200;      // without a new step
  double leave_s = 60;        // for the launcher to end after the run has finished or stopped
  double failed_s = 3;        // the same after a failure: srun waits for a dead node for minutes
  double take_over_s = 1800;  // for the ranks of a killed supervisor to save and end
};

// Keeps a run going: starts its ranks with the launcher of the job, watches them from outside, and
// starts them again from the newest usable state when they fail, without nodes that failed where
// there are others. It runs on the first node of the job, in the job script, which starts it again
// if it is killed. Writes RUN_DIR/launch/attempts.jsonl.
class Supervisor {
 public:
  explicit Supervisor(JobDescription job, SupervisorOptions options = {});

  // Returns the exit code of the job (core/error.h). SIGTERM, SIGUSR1, SIGINT and SIGHUP ask
  // the run to save and stop. A second SIGINT ends this process at once; the ranks notice that,
  // save and stop.
  int run();

 private:
  LaunchAttempt run_attempt(const NodeChoice& choice);
  // Waits until the launcher has ended. Fills in the attempt.
  void watch(pid_t leader, LaunchAttempt& attempt);
  // `later_s`: after the other ranks would have given it up.
  std::optional<RankFailure> silent_rank_0(const SupervisorPort::State& state,
                                           double later_s) const;
  // Why the attempt must be ended from outside; nothing if it need not be.
  std::optional<RankFailure> given_up(const SupervisorPort::State& state, double running_s);
  // How an attempt ended that was not ended from outside.
  void note_end(const SupervisorPort::State& state, int status, RunEnd& end) const;
  void forward_stop();
  void kill_steps() const;
  void take_over();
  void write_state(pid_t leader, const LaunchAttempt& attempt) const;
  void keep(const LaunchAttempt& attempt) const;
  void blame(const RankFailure& failure);
  NodeStates node_states() const;
  bool fits(std::int64_t nodes) const;
  std::int64_t saved_step() const;

  JobDescription job_;
  SupervisorOptions options_;
  SupervisorPort port_;
  DeputyKeeper deputy_;
  std::filesystem::path ledger_;  // of bad nodes
  std::vector<LaunchAttempt> attempts_;
  double known_start_s_ = -1;         // the slowest start before them
  std::vector<std::string> avoided_;  // nodes that failed, the latest first
  std::vector<std::string> others_;   // usable nodes of the job other than this one
  bool stopping_ = false;
  std::int64_t last_step_ = 0;  // of the current attempt, and when it began
  double last_step_at_s_ = 0;
};

// An attempt that attempts.jsonl does not have: it goes on, or its supervisor was killed.
struct OpenAttempt {
  double began_s = 0;      // Unix time; 0: there is none
  double seen_s = 0;       // when its files changed last
  double reported_s = -1;  // as in LaunchAttempt
  std::int64_t nodes = 0;  // 0: unknown
};
OpenAttempt open_attempt(const std::filesystem::path& run_dir);

// Whether the supervisor of a run is a process of this machine.
bool supervisor_is_here(const std::filesystem::path& run_dir);

}  // namespace kintsugi
