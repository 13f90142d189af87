#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace kintsugi {

// Slurm's commands as child processes. Failure with the command's own message if one fails or does
// not answer.

// UserError if Slurm's commands are not installed here.
void require_slurm();
bool slurm_is_here();

struct SlurmPartition {
  std::string name = {};
  std::optional<double> limit_s = {};  // nullopt: no limit
  std::int64_t nodes = 0;
};
std::vector<SlurmPartition> slurm_partitions();  // sinfo
// "infinite", "2-00:00:00", "23:59:50", "30:00" or "30" minutes; nullopt: no limit.
std::optional<double> parse_slurm_time(const std::string& text);

// Checks a job against the partition, or the default partition if it is empty. UserError.
void check_partition(const std::vector<SlurmPartition>& partitions, const std::string& partition,
                     std::int64_t nodes, double job_s);

// Submits a script and returns the job's id. `options` count before the lines of the script.
std::string submit_job(const std::filesystem::path& script,
                       const std::vector<std::string>& options = {});

struct SlurmJobState {
  std::string id = {};      // "17" or "17_3"
  std::string state = {};   // RUNNING, PENDING, …
  std::string reason = {};  // of a waiting job; nodes of a running one
  std::string elapsed = {}, limit = {};
};
// The jobs in the queue with these ids; finished jobs are not listed.
std::vector<SlurmJobState> job_states(const std::vector<std::string>& ids);

// Waiting jobs leave the queue; running ones are sent SIGUSR1, so that they save and end.
void stop_jobs(const std::vector<std::string>& ids);
void kill_jobs(const std::vector<std::string>& ids);  // at once, without a save

// "1-3,7" of {1, 2, 3, 7}, each with at least `width` digits.
std::string number_ranges(const std::set<std::int64_t>& numbers, std::size_t width = 0);
// The names of nodes in Slurm's form: "login1,nid[001-003,007]".
std::string host_list(std::vector<std::string> names);

}  // namespace kintsugi
