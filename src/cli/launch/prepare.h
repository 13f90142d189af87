#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/job_description.h"
#include "launch/job_script.h"
#include "launch/matrix.h"
#include "train/config/config.h"

namespace kintsugi {

// What `kintsugi launch CONFIG` was given.
struct LaunchRequest {
  std::string config = {};
  std::vector<std::string> overrides = {};
  std::string machine = {};   // a name or a file
  std::string topology = {};  // a file, or "this"; empty: the machine's
  LaunchOptions options = {};
  bool print = false;
  bool allow_undriven_gpus = false;
  bool local = false;
  std::int64_t ranks = 1;  // with `local`
  std::int64_t max_jobs = 50;
};

// A run that passed all checks: everything that is needed to write and submit it.
struct PreparedRun {
  std::string cell = {};  // of a matrix; empty: none
  RunConfig config = {};
  JobDescription job = {};
  std::string script = {};
  std::int64_t allocated_nodes = 1;
  std::string partition = {};  // empty: the default
  double job_s = 0;            // 0: the default
};

// Whether one of them may compute on GPUs.
bool wants_gpus(const std::vector<PreparedRun>& runs);

// Reads the configuration and checks every cell: layout, memory, data, time, directories, and
// whether this program can use the machine's GPUs. Writes nothing. UserError.
std::vector<PreparedRun> prepare_runs(const LaunchRequest& request);

}  // namespace kintsugi
