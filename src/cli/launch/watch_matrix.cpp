// --status and --cancel for the root directory of a matrix.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/launch/watch.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/units.h"
#include "launch/job_description.h"
#include "launch/slurm.h"
#include "launch/supervisor.h"
#include "report/runs/run_status.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

struct CellRun {
  fs::path directory;
  std::optional<JobDescription> job = {};  // empty: job.json is damaged
  std::string problem = {};
  std::string queue = {};  // states of its jobs in the queue; empty: none

  std::string name() const { return printable(directory.filename().string()); }
};

// The runs directly below a directory, by name; none if it is a run itself.
std::vector<CellRun> cells_in(const fs::path& directory) {
  std::vector<CellRun> cells;
  std::error_code unknown;
  if (fs::exists(job_file(directory), unknown)) return cells;
  for (const auto& entry : fs::directory_iterator(directory, unknown)) {
    std::error_code ignored;
    if (!fs::exists(job_file(entry.path()), ignored)) continue;
    CellRun cell{.directory = entry.path()};
    try {
      cell.job = load_job(cell.directory);
    } catch (const UserError& error) {
      cell.problem = error.what();
    }
    cells.push_back(std::move(cell));
  }
  std::sort(cells.begin(), cells.end(),
            [](const CellRun& a, const CellRun& b) { return a.directory < b.directory; });
  return cells;
}

// Asks Slurm once for all runs.
void find_queue_states(std::vector<CellRun>& cells) {
  std::vector<std::string> ids;
  for (const CellRun& cell : cells)
    if (cell.job && !cell.job->local)
      ids.insert(ids.end(), cell.job->job_ids.begin(), cell.job->job_ids.end());
  if (ids.empty()) return;
  std::map<std::string, std::string> states;  // by the id of the job or of its array
  for (const SlurmJobState& one : job_states(ids)) {
    std::string& all = states[one.id.substr(0, one.id.find('_'))];
    if (all.find(one.state) == std::string::npos) all += (all.empty() ? "" : "+") + one.state;
  }
  for (CellRun& cell : cells)
    if (cell.job && !cell.job->local)
      for (const std::string& id : cell.job->job_ids)
        if (const auto found = states.find(id); found != states.end()) cell.queue = found->second;
}

std::string job_text(const CellRun& cell) {
  if (!cell.job) return "damaged";
  if (cell.job->local) return "local";
  if (cell.job->job_ids.empty()) return "-";
  return cell.job->job_ids.back() + (cell.queue.empty() ? "" : " " + cell.queue);
}

bool is_here(const CellRun& cell) {
  return cell.job->local && !read_exit_code(cell.directory) && supervisor_is_here(cell.directory);
}

// What --cancel does to one run; empty: nothing, it has ended. Adds the jobs to be stopped.
std::string prepare_cancel(const CellRun& cell, bool now, std::vector<std::string>& ids) {
  if (cell.job->local ? !is_here(cell) : cell.queue.empty()) return "";
  if (!cell.job->local) ids.insert(ids.end(), cell.job->job_ids.begin(), cell.job->job_ids.end());
  if (now) return "cancelled";
  // A job that has not started must not find it later.
  const bool running = cell.job->local || cell.queue.find("RUNNING") != std::string::npos;
  if (!running) return "removed from the queue";
  write_file_atomically(cell.directory / "stop", "kintsugi launch --cancel\n");
  return "asked to save and stop";
}

}  // namespace

void show_runs(const fs::path& directory) {
  std::vector<CellRun> cells = cells_in(directory);
  if (cells.empty()) return show_run(directory);
  if (slurm_is_here()) find_queue_states(cells);
  Table table({Column::text("run"), Column::text("job"), Column::text("state"),
               Column::number("step"), Column::number("loss", "", "{:.4f}"),
               Column::duration("ETA")});
  for (const CellRun& cell : cells) {
    const RunStatus status = read_run_status(cell.directory);
    const bool running = status.state == "running";
    table.add({cell.name(), job_text(cell), status.state.empty() ? "not started" : status.state,
               fmt::format("{}/{}", status.step, status.total_steps), status.loss,
               running ? status.eta_s : std::nullopt});
  }
  fmt::print("{}", table.text());
}

void cancel_runs(const fs::path& directory, bool now) {
  std::vector<CellRun> cells = cells_in(directory);
  if (cells.empty()) return cancel_run(directory, now);
  find_queue_states(cells);
  if (now && std::any_of(cells.begin(), cells.end(),
                         [](const CellRun& cell) { return cell.job && is_here(cell); }))
    user_error(
        "--now ends jobs of Slurm; a run in {} runs on this machine: leave out --now so that it "
        "saves",
        directory.string());
  std::vector<std::string> ids, lines;
  std::string problem;
  for (const CellRun& cell : cells) try {
      if (!cell.job) failure("{}", cell.problem);
      if (const std::string done = prepare_cancel(cell, now, ids); !done.empty())
        lines.push_back(fmt::format("{}: {}\n", cell.name(), done));
    } catch (const std::exception& error) {
      problem = error.what();
    }
  if (!ids.empty()) now ? kill_jobs(ids) : stop_jobs(ids);
  for (const std::string& line : lines) fmt::print("{}", line);
  if (!problem.empty()) failure("{}: this run was not cancelled", problem);
  if (lines.empty())
    user_error("no run in {} has a job: there is nothing to cancel", directory.string());
}

}  // namespace kintsugi
