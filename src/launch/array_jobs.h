#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/work_stage.h"
#include "launch/job_script.h"

namespace kintsugi {

// What the user asks of job arrays that run a command on CPU cores.
struct ArrayRequest {
  std::vector<std::string> command;  // of this program, without its name
  std::int64_t tasks = 1;            // at most, of each stage
  std::int64_t at_once = 0;          // of them, at most; 0: no limit
  std::int64_t cpus = 0;             // of each task; 0: as the machine file says
};
// "100", or "100%20": at most 20 at once. UserError.
void read_array_size(const std::string& text, ArrayRequest& request);

// The job array of one stage.
struct ArrayJob {
  std::string stage = {};
  std::int64_t tasks = 1;     // that its units are divided among
  std::string elements = {};  // those with missing units, for --array; empty: one job, no array
  bool operator==(const ArrayJob&) const = default;
};

// The following are pure functions.

// What is missing, in order; empty: nothing. UserError if there are more tasks than units.
std::vector<ArrayJob> array_jobs(const WorkPlan& plan, const ArrayRequest& request);
// UserError for options that the machine cannot satisfy.
JobDescription describe_arrays(const Machine& machine, const LaunchOptions& options,
                               const JobPaths& paths);
// The batch script of a stage; `one_stage`: the command has no other.
ScriptParts array_script_parts(const Machine& machine, const LaunchOptions& options,
                               const JobPaths& paths, const ArrayRequest& request,
                               const ArrayJob& job, bool one_stage);

}  // namespace kintsugi
