#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/rank_failure.h"

namespace kintsugi {

// One start of this program with a launch command, watched to its end.
struct AcceptTrial {
  std::optional<RunEnd> end = {};  // as its rank 0 reported it
  int exit_code = 0;               // of the launcher; 128 + signal
  bool in_time = true;
  // Asked to stop before its end: by the end of the job, another process, or with this one.
  bool stopped = false;
  double seconds = 0;
  std::filesystem::path log = {};

  bool ran() const { return in_time && exit_code == 0; }
  // For people: why it did not run.
  std::string problem() const;
};

class AcceptTrials {
 public:
  // `launch`: shell text before the program, in which {ranks} and {nodes} are replaced; empty: one
  // rank is started directly. `node_ranks`: of each node. Logs are in `directory`.
  AcceptTrials(std::string launch, int node_ranks, std::filesystem::path directory);

  // Starts `ranks` ranks with these arguments, and waits for their end. `meanwhile` is called often
  // with the address of their supervisor, this process, which is in their environment. UserError
  // if the launch command itself cannot be run.
  AcceptTrial run(const std::string& name, int ranks, const std::vector<std::string>& arguments,
                  double limit_s,
                  const std::function<void(const std::string& supervisor)>& meanwhile = {}) const;

  const std::filesystem::path& directory() const { return directory_; }

 private:
  std::string launch_;
  int node_ranks_;
  std::filesystem::path directory_;
};

// Kills the highest rank on this machine among those with this supervisor. Returns its number, -1
// if its launcher does not say which it is; nothing if there is none, or only rank 0 of several.
std::optional<int> kill_one_rank(const std::string& supervisor);

// The steps of a run: StepSeries of its metrics.jsonl. Missing values are NaN.
struct RunSteps {
  std::vector<double> loss = {}, norm = {}, step_s = {}, comm_busy_s = {}, comm_wait_s = {},
                      gpu_j = {}, node_j = {};
  double memory_bytes = 0;
};
RunSteps read_steps(const std::filesystem::path& run);

// The tensors of the newest checkpoint, by file.
struct CheckpointFiles {
  std::int64_t step = 0;
  double bytes = 0;
  std::vector<std::pair<std::string, std::string>> hashes = {};  // name, hash
};
CheckpointFiles read_checkpoint(const std::filesystem::path& run);

}  // namespace kintsugi
