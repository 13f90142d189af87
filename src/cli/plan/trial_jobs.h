#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "plan/search/tuning.h"

namespace kintsugi {

// How a trial is launched.
struct TrialSetup {
  std::string config = {};                  // the run's YAML file
  std::vector<std::string> overrides = {};  // the user's own
  std::string launch = {};  // shell words before the program; {ranks} and {trial} are filled in
  int steps = 6;            // of a trial, the first two not counted
  double timeout_s = 300;
  std::filesystem::path directory = {};  // for the trials' logs and, while they last, their runs
};

// The section `layout` and the micro-batch of a layout, as train's --set takes them.
std::vector<std::string> layout_overrides(const Layout& layout);

// Trials as child processes of this binary: kintsugi train for a few steps, without checkpoints.
// Each is a session of its own, which ends as a whole.
class TrialJobs {
 public:
  explicit TrialJobs(TrialSetup setup);
  ~TrialJobs();  // ends what still runs
  TrialJobs(const TrialJobs&) = delete;
  TrialJobs& operator=(const TrialJobs&) = delete;

  void start(int number, const Layout& layout);
  int running() const { return static_cast<int>(jobs_.size()); }

  struct Ended {
    int number = 0;
    TrialResult result = {};
    double seconds = 0;
    bool told_to_stop = false;  // by a signal that did not come from here
  };
  // One that has ended, or that took too long and was ended; none: all are under way. UserError
  // where the launch line itself cannot be run.
  std::optional<Ended> poll();
  void stop();  // ends all and forgets them

  std::filesystem::path log_of(int number) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Running {
    int number;
    pid_t leader;
    Clock::time_point began;
  };

  std::filesystem::path run_of(int number) const;
  std::vector<std::string> command(int number, const Layout& layout) const;
  Ended finish(const Running& job, bool in_time);
  TrialResult result_of(int number, int status) const;

  TrialSetup setup_;
  std::string program_;  // this one
  std::vector<Running> jobs_;
};

}  // namespace kintsugi
