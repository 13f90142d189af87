#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/job_description.h"
#include "launch/script_parts.h"
#include "launch/topology.h"
#include "plan/machines/machine.h"

namespace kintsugi {

// What the user asks of a job.
struct LaunchOptions {
  std::int64_t nodes = 1;
  std::int64_t spare_nodes = 0;
  std::int64_t min_nodes = 0;       // 0: all of `nodes`
  std::int64_t ranks_per_node = 0;  // 0: one per GPU
  double time_s = 0;                // of the whole run; 0: the machine's limit
  std::string account = {};
  std::string partition = {};  // empty: the machine's
  std::string qos = {};        // empty: that of the machine's limit for this many nodes
  std::string container = {};  // an image; empty: none
  std::string name = {};
  bool requeue = false;       // put the job back into the queue at its time limit
  bool no_requeue = false;    // not even after the failure of a node
  double signal_s = 0;        // 0: the machine's
  std::string exclude = {};   // nodes, as Slurm writes them
  std::string cpu_bind = {};  // empty: as the machine says
  // A command that runs first in the job. If it fails, the job ends with its exit code.
  std::vector<std::string> first = {};
};

// Where the files of a job are; all paths are absolute.
struct JobPaths {
  std::string run_dir;
  std::string program;
  std::string working_directory;  // in which relative paths of the configuration are found
};

// The time of one Slurm job, and how many of them follow each other.
struct JobTime {
  double job_s = 0;
  std::int64_t jobs = 1;
  double signal_s = 0;
};

// The following are pure functions. UserError for options that the machine cannot satisfy.

// The longest job of these nodes, partition and QoS; nullopt: unknown. UserError if there is none.
std::optional<double> time_limit_s(const Machine& machine, const LaunchOptions& options);
JobTime job_time(const Machine& machine, const LaunchOptions& options);
std::int64_t ranks_per_node(const Machine& machine, const LaunchOptions& options);
// `topology` replaces that of the machine.
JobDescription describe_job(const Machine& machine, const LaunchOptions& options,
                            const JobPaths& paths, const std::optional<Topology>& topology = {});
// The batch script that sbatch is given, with why its lines are there.
ScriptParts job_script_parts(const Machine& machine, const LaunchOptions& options,
                             const JobPaths& paths, const JobDescription& job);
// The same as one text.
std::string job_script(const Machine& machine, const LaunchOptions& options, const JobPaths& paths,
                       const JobDescription& job);

// A batch script that runs `command` once, on the first node, without a signal before its end.
// `command` starts ranks itself, with the job's launcher as its text: launcher_text().
std::string command_script(const Machine& machine, const LaunchOptions& options,
                           const JobPaths& paths, const JobDescription& job,
                           const std::vector<std::string>& command);
// For a shell. {nodes} and {ranks} are still in it; no nodes are left out.
std::string launcher_text(const JobDescription& job);

// Parts of a batch script for any kind of job: name, account, partition and QoS; nodes to leave out
// and options of the machine; time; modules and variables.
ScriptParts header_start(const Machine& machine, const LaunchOptions& options,
                         const JobDescription& job);
ScriptParts header_options(const Machine& machine, const LaunchOptions& options);
ScriptParts header_time(const Machine& machine, const LaunchOptions& options);
ScriptParts environment_of(const Machine& machine, const JobDescription& job, bool container);
// UserError for options and paths that no job of the machine can have.
void check_job(const Machine& machine, const LaunchOptions& options, const JobPaths& paths);

// A job on this machine: with mpirun, or directly if there is one rank.
JobDescription describe_local_job(std::int64_t ranks, const std::string& name,
                                  const JobPaths& paths);
std::string local_script(const JobDescription& job, const JobPaths& paths);

std::string slurm_time(double seconds);             // "2-00:00:00"
std::string slurm_name(std::string text);           // what a job may be called
std::string shell_quoted(const std::string& text);  // one word for bash, nothing expanded
std::string quoted_words(const std::vector<std::string>& words);  // a command for bash

}  // namespace kintsugi
