#include "cli/launch/submit.h"

#include <fmt/format.h>

#include <memory>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/output_file.h"
#include "launch/child_session.h"
#include "launch/job_description.h"
#include "launch/slurm.h"
#include "train/startup.h"

namespace kintsugi {

namespace fs = std::filesystem;

NewFiles::~NewFiles() {
  std::error_code ignored;
  for (auto& [path, before] : files_) {
    try {
      before ? write_private_file(path, before->text) : void(fs::remove(path, ignored));
      if (before) fs::permissions(path, before->permissions, ignored);
    } catch (const std::exception& error) {
      log_message(LogLevel::Error, error.what());
    }
  }
  for (auto one = folders_.rbegin(); one != folders_.rend(); ++one) fs::remove(*one, ignored);
}

void NewFiles::create_folders(const fs::path& folder) {
  std::vector<fs::path> missing;
  std::error_code error;
  for (fs::path one = folder; !one.empty() && !fs::exists(one, error); one = one.parent_path())
    missing.push_back(one);
  for (auto one = missing.rbegin(); one != missing.rend(); ++one) {
    if (!fs::create_directory(*one, error) && error)
      failure("cannot create {}: {}", one->string(), error.message());
    folders_.push_back(*one);
  }
}

void NewFiles::write(const fs::path& path, const std::string& text) {
  remember(path);
  write_file_atomically(path, text);
}

void NewFiles::write(const fs::path& path, const RunConfig& config) {
  remember(path);
  write_config_file(path, config);
}

void NewFiles::keep() {
  files_.clear();
  folders_.clear();
}

void NewFiles::remember(const fs::path& path) {
  std::optional<OldFile> before;
  if (fs::exists(path)) before = {read_text_file(path), fs::status(path).permissions()};
  files_.emplace_back(path, std::move(before));
}

namespace {

void write_job(PreparedRun& run, NewFiles& files) {
  const fs::path folder = run.job.directory();
  files.create_folders(folder);
  if (fs::exists(job_file(run.job.run_dir))) {
    try {
      run.job.job_ids = load_job(run.job.run_dir).job_ids;
    } catch (const UserError& error) {
      log_warning("{}; it is replaced", error.what());
    }
  }
  run.job.submitted_s = static_cast<std::int64_t>(unix_time_s());
  files.write(run.job.config, run.config);
  files.write(folder / "job.sh", run.script);
  files.write(job_file(run.job.run_dir), to_json(run.job));
  std::error_code ignored;
  fs::permissions(folder / "job.sh", fs::perms::owner_exec | fs::perms::group_exec,
                  fs::perm_options::add, ignored);
}

// A new job must not obey the end of the last one.
void clear_ends(const fs::path& run_dir) {
  std::error_code error;
  fs::remove(run_dir / "launch" / "exit_code", error);
  if (fs::remove(run_dir / "stop", error))
    log_note("removed {}, which asked an earlier job to stop", (run_dir / "stop").string());
}

}  // namespace

void check_partitions(const std::vector<PreparedRun>& runs) {
  const std::vector<SlurmPartition> partitions = slurm_partitions();
  for (const PreparedRun& run : runs)
    check_partition(partitions, run.partition, run.allocated_nodes, run.job_s);
}

void submit_runs(std::vector<PreparedRun>& runs, const std::vector<std::string>& options) {
  std::vector<std::unique_ptr<NewFiles>> files;
  std::vector<std::string> submitted;
  try {
    for (PreparedRun& run : runs) write_job(run, *files.emplace_back(std::make_unique<NewFiles>()));
    for (PreparedRun& run : runs) {
      clear_ends(run.job.run_dir);
      submitted.push_back(submit_job(run.job.directory() / "job.sh", options));
      run.job.job_ids.push_back(submitted.back());
      save_job(run.job);
    }
  } catch (const std::exception&) {
    while (!files.empty()) files.pop_back();  // the last first: it is inside of folders of others
    kill_jobs(submitted);
    throw;
  }
  for (const auto& one : files) one->keep();
  for (PreparedRun& run : runs) run.lock.reset();  // for its supervisor, which waits for it
}

fs::path write_local_run(PreparedRun& run) {
  NewFiles files;
  write_job(run, files);
  clear_ends(run.job.run_dir);
  files.keep();
  run.lock->pass_on();
  return run.job.directory() / "job.sh";
}

int run_locally(std::vector<PreparedRun>& runs) {
  int worst = exit_code::kFinished;
  for (PreparedRun& run : runs) {
    const fs::path script = write_local_run(run);
    if (!run.cell.empty()) log_note("cell {} in {}", run.cell, run.job.run_dir);
    const int code = run_script(script);
    run.lock.reset();
    if (code != exit_code::kFinished) worst = runs.size() == 1 ? code : exit_code::kFailure;
    if (code == exit_code::kStopped) return code;  // the user stops all of them
    if (code != exit_code::kFinished && !run.cell.empty())
      log_warning("cell {} ended with exit code {}", run.cell, code);
  }
  return worst;
}

}  // namespace kintsugi
