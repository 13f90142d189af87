#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace kintsugi {

// Everything that the supervisor of a job needs: RUN_DIR/launch/job.json. `kintsugi launch` writes
// it before the job is submitted; the job reads it again at each of its starts.
struct JobDescription {
  std::string name = {};
  std::string run_dir = {};  // absolute
  std::string config = {};   // RUN_DIR/launch/config.yaml: the configuration with --set applied
  std::string program = {};  // the kintsugi binary, as the nodes see it
  std::string machine = {};
  std::int64_t ranks_per_node = 1;
  std::int64_t nodes = 1;        // that train
  std::int64_t spare_nodes = 0;  // allocated in addition
  std::int64_t min_nodes = 1;    // the run may continue on this many
  // The words before `program`: launcher and container. {nodes}, {ranks}, {exclude} and {nodelist}
  // are replaced; a word whose {exclude} or {nodelist} is empty is left out. Empty: the program is
  // started directly, as one rank.
  std::vector<std::string> launcher = {};
  std::vector<std::pair<std::string, std::string>> environment = {};  // job.sh exports it
  bool local = false;            // started on this machine, without Slurm
  bool requeue = false;          // a stopped job asks Slurm to be started again
  std::int64_t chain = 1;        // elements of the job array that continue each other; 1: no array
  std::int64_t submitted_s = 0;  // Unix time
  std::vector<std::string> job_ids = {};  // of Slurm, oldest first; array jobs without the element
  bool operator==(const JobDescription&) const = default;

  std::int64_t ranks() const { return nodes * ranks_per_node; }
  std::filesystem::path directory() const { return std::filesystem::path(run_dir) / "launch"; }
};

// Which nodes one start of the ranks uses.
struct NodeChoice {
  std::int64_t nodes = 1;
  std::vector<std::string> exclude = {};   // host names; empty: none
  std::vector<std::string> nodelist = {};  // host names; empty: the launcher chooses
};

// The command that starts the ranks: launcher, program and `arguments` ("train", the
// configuration).
std::vector<std::string> rank_command(const JobDescription& job, const NodeChoice& choice,
                                      const std::vector<std::string>& arguments);

// The text with each `word` in it, such as {ranks}, replaced.
std::string with_value(std::string text, const std::string& word, const std::string& value);

std::string to_json(const JobDescription& job);
// UserError that names `source` and the key if the text is no job description.
JobDescription job_from_json(const std::string& text, const std::string& source);

std::filesystem::path job_file(const std::filesystem::path& run_dir);  // RUN_DIR/launch/job.json
JobDescription load_job(const std::filesystem::path& run_dir);
void save_job(const JobDescription& job);  // replaces job.json at once

}  // namespace kintsugi
