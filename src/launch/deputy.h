#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "launch/job_description.h"

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

}  // namespace kintsugi
