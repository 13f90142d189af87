#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/supervisor_link.h"
#include "plan/search/tuning.h"

namespace kintsugi {

// How a trial is launched.
struct TrialSetup {
  std::string config = {};                  // the run's YAML file
  std::vector<std::string> overrides = {};  // given by the user with --set
  std::string launch = {};  // shell text before the program; {ranks} and {trial} are replaced
  int steps = 6;            // per trial; the first two are not measured
  double timeout_s = 300;
  std::filesystem::path directory = {};  // logs and temporary run directories of the trials
};

// The --set arguments of train for a layout and its micro-batch size.
std::vector<std::string> layout_overrides(const Layout& layout);

// Runs trials as child processes: kintsugi train for a few steps, without checkpoints. Each trial
// has its own session, which is ended as a whole.
class TrialJobs {
 public:
  explicit TrialJobs(TrialSetup setup);
  ~TrialJobs();  // ends the running trials
  TrialJobs(const TrialJobs&) = delete;
  TrialJobs& operator=(const TrialJobs&) = delete;

  void start(int number, const Layout& layout);
  int running() const { return static_cast<int>(jobs_.size()); }

  struct Ended {
    int number = 0;
    TrialResult result = {};
    double seconds = 0;
    bool stopped = false;  // by a signal of another process, or at the end of the job
  };
  // Returns a trial that has ended or that exceeded the timeout (and is then ended); nullopt if all
  // still run. UserError if the launch command itself cannot be run.
  std::optional<Ended> poll();
  void stop();  // ends all trials without results

  std::filesystem::path log_of(int number) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Running {
    int number;
    pid_t leader;
    Clock::time_point began;
    std::shared_ptr<SupervisorPort> port;  // the trial reports its end here
  };

  std::filesystem::path run_of(int number) const;
  std::filesystem::path session_of(int number) const;
  void remove_files_of(int number) const;
  std::vector<std::string> command(int number, const Layout& layout) const;
  Ended finish(Running job, bool in_time);
  TrialResult result_of(int number, int status, const std::optional<RunEnd>& end) const;

  TrialSetup setup_;
  std::string program_;  // path of this binary
  std::vector<Running> jobs_;
};

}  // namespace kintsugi
