#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/launch/prepare.h"
#include "train/config/config.h"

namespace kintsugi {

// Files that are removed, or get their old content back, unless keep() is called.
class NewFiles {
 public:
  NewFiles() = default;
  ~NewFiles();
  NewFiles(const NewFiles&) = delete;
  NewFiles& operator=(const NewFiles&) = delete;

  void create_folders(const std::filesystem::path& folder);
  void write(const std::filesystem::path& path, const std::string& text);
  void write(const std::filesystem::path& path, const RunConfig& config);
  void keep();

 private:
  struct OldFile {
    std::string text;
    std::filesystem::perms permissions;
  };
  void remember(const std::filesystem::path& path);

  std::vector<std::pair<std::filesystem::path, std::optional<OldFile>>> files_;
  std::vector<std::filesystem::path> folders_;
};

// Checks the partitions of the runs against those of Slurm.
void check_partitions(const std::vector<PreparedRun>& runs);

// Writes RUN_DIR/launch of each run and submits it to Slurm. If one cannot be submitted, those
// before it are cancelled, and all files are as before. Their job ids are then in PreparedRun::job.
void submit_runs(std::vector<PreparedRun>& runs, const std::vector<std::string>& options = {});

// Writes RUN_DIR/launch of a run that begins here. Returns its script, which holds the lock of the
// run, too, if it is the next process that starts (RunLock::end_pass_on after it).
std::filesystem::path write_local_run(PreparedRun& run);
// Runs them here, one after the other. Returns the exit code of the command.
int run_locally(std::vector<PreparedRun>& runs);

}  // namespace kintsugi
