#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/job_description.h"
#include "launch/job_script.h"
#include "train/config/config.h"
#include "train/run_lock.h"

namespace kintsugi {

// What `kintsugi launch CONFIG` was given.
struct LaunchRequest {
  std::string config = {};
  std::vector<std::string> overrides = {};
  std::string machine = {};   // a name or a file
  std::string topology = {};  // a file, or "this"; empty: the machine's
  LaunchOptions options = {};
  bool print = false;
  bool explain = false;  // with `print`: why each line is there
  bool allow_undriven_gpus = false;
  bool local = false;
  std::int64_t ranks = 1;  // with `local`
  std::int64_t max_jobs = 50;
  std::optional<std::string> text = {};  // of the configuration, instead of the file
  bool in_job = false;      // it is the job that asks: its launch holds no lock any more
  bool data_later = false;  // its data need not be there yet
};

// A run that passed all checks: everything that is needed to write and submit it.
struct PreparedRun {
  // Of the run directory, from the checks to the end; none with --print. Slurm: until it is
  // submitted.
  std::unique_ptr<RunLock> lock = {};
  std::string cell = {};  // of a matrix; empty: none
  RunConfig config = {};
  JobDescription job = {};
  std::string script = {};
  std::string explanation = {};  // with `explain`: the script and the launcher, with reasons
  std::int64_t allocated_nodes = 1;
  std::string partition = {};  // empty: the default
  double job_s = 0;            // 0: the default
};

// Refuses a machine whose GPUs this program cannot use, with `meaning`: what would happen, and what
// to do; only warns if the request allows it. UserError.
void check_driven(const LaunchRequest& request, const Machine& machine, const std::string& meaning);
// `device`; instead of Auto, that of the machine's GPUs if it is known.
DeviceChoice device_for(const LaunchRequest& request, const Machine& machine, DeviceChoice device);

// UserError if a job of Slurm uses the run directory.
void check_not_active(const std::filesystem::path& run_dir);

// What --topology names; nothing: the machine's.
std::optional<Topology> topology_given(const LaunchRequest& request);

// Whether one of them may compute on GPUs.
bool wants_gpus(const std::vector<PreparedRun>& runs);

// In the order of the matrix. Their locks are released in reverse, because the folder of a later
// run may be inside of one that was created for an earlier run.
struct PreparedRuns {
  PreparedRuns() = default;
  PreparedRuns(PreparedRuns&&) = default;
  PreparedRuns& operator=(PreparedRuns&&) = delete;
  ~PreparedRuns() {
    while (!list.empty()) list.pop_back();
  }
  std::vector<PreparedRun> list;
};

// Reads the configuration and checks every cell: layout, memory, data, time, directories, and
// whether this program can use the machine's GPUs. Locks their directories, unless the scripts are
// only printed, and writes nothing else. UserError.
PreparedRuns prepare_runs(const LaunchRequest& request);

}  // namespace kintsugi
