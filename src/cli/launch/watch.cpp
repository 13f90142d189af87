#include "cli/launch/watch.h"

#include <fmt/chrono.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/units.h"
#include "launch/job_description.h"
#include "launch/slurm.h"
#include "launch/supervisor.h"
#include "report/runs/run_status.h"
#include "train/stop_requests.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

using FollowClock = std::chrono::steady_clock;

constexpr auto kFollowInterval = std::chrono::seconds(1);
constexpr auto kQueueInterval = std::chrono::seconds(10);  // between questions to Slurm
constexpr double kSilence_s = 300;                         // of a run, before --status mentions it
constexpr std::streamoff kFirstLook = 4096;                // bytes of a log that exists already

// Prints the lines that were added to a file since the last call; a partial line waits.
class GrowingFile {
 public:
  explicit GrowingFile(fs::path path) : path_(std::move(path)) {}

  void print_new() {
    std::ifstream file(path_, std::ios::binary);
    file.seekg(0, std::ios::end);
    const std::streamoff size = file.tellg();
    if (!file || size < 0) return;
    if (position_ < 0) skip_to(size - std::min(size, kFirstLook), file);
    if (size < position_) position_ = 0;  // it was written again
    file.clear();
    file.seekg(position_);
    for (std::string line; std::getline(file, line) && !file.eof();) {
      fmt::print("{}\n", printable(line));
      position_ += static_cast<std::streamoff>(line.size()) + 1;
    }
    std::fflush(stdout);
  }

 private:
  void skip_to(std::streamoff start, std::ifstream& file) {
    position_ = start;
    if (start == 0) return;
    file.seekg(start);
    std::string partial;
    std::getline(file, partial);
    position_ += static_cast<std::streamoff>(partial.size()) + 1;
  }

  fs::path path_;
  std::streamoff position_ = -1;
};

std::string optional_text(const char* name, const std::optional<double>& value,
                          const char* format) {
  return value ? fmt::format(", {} {}", name, fmt::format(fmt::runtime(format), *value)) : "";
}

// A run writes its status at each step.
std::string silence_of(const RunStatus& status) {
  std::tm parts{};
  if (status.state != "running" ||
      strptime(status.updated.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts) == nullptr)
    return "";
  const auto passed = static_cast<double>(std::time(nullptr) - timegm(&parts));
  return passed < kSilence_s ? ""
                             : fmt::format(" (no sign of life for {})", format_duration(passed));
}

void show_jobs(const JobDescription& job) {
  if (job.local) return;
  if (job.job_ids.empty()) return fmt::print("job       not submitted\n");
  if (!slurm_is_here())
    return fmt::print("job       {} (Slurm is not installed here)\n", job.job_ids.back());
  const auto states = job_states(job.job_ids);
  if (states.empty()) fmt::print("job       {}, not in the queue\n", job.job_ids.back());
  for (const SlurmJobState& state : states)
    fmt::print("job       {} {} {} of {} {}\n", state.id, state.state, state.elapsed, state.limit,
               printable(state.reason));
}

// The files of a run that --follow prints.
class FollowedRun {
 public:
  explicit FollowedRun(const fs::path& run_dir)
      : run_dir_(run_dir), log_(run_dir / "log.txt"), has_job_(fs::exists(job_file(run_dir))) {}

  // The output of a job repeats log.txt, which exists once the run has started. What follows a
  // failure is only in the output.
  void print_new(bool ended) {
    std::error_code ignored;
    find_outputs();
    const bool started = fs::exists(run_dir_ / "log.txt", ignored);
    if (!started || (ended && read_exit_code(run_dir_).value_or(1) != 0))
      for (auto& [name, file] : outputs_) file.print_new();
    log_.print_new();
  }

  // Why nothing more will come; empty: the job goes on.
  std::string end(bool ask_queue) const {
    if (const auto code = read_exit_code(run_dir_))
      return fmt::format("the job has ended with exit code {}", *code);
    if (!has_job_) {  // started by hand: its own state decides
      const std::string state = read_run_status(run_dir_).state;
      return state.empty() || state == "running" ? "" : "the run is " + printable(state);
    }
    if (!ask_queue) return "";
    const JobDescription job = load_job(run_dir_);
    if (job.local) return supervisor_is_here(run_dir_) ? "" : "no process of the run is left here";
    if (job.job_ids.empty() || !slurm_is_here()) return "";
    return job_states(job.job_ids).empty() ? "the job is no longer in the queue" : "";
  }

 private:
  void find_outputs() {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(run_dir_ / "launch", ignored)) {
      const std::string name = entry.path().filename().string();
      const bool known = std::any_of(outputs_.begin(), outputs_.end(),
                                     [&](const auto& one) { return one.first == name; });
      if (!known && name.starts_with("slurm-") && name.ends_with(".out"))
        outputs_.emplace_back(name, GrowingFile(entry.path()));
    }
  }

  fs::path run_dir_;
  GrowingFile log_;
  bool has_job_;
  std::vector<std::pair<std::string, GrowingFile>> outputs_;
};

std::string submission_time(const JobDescription& job) {
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(job.submitted_s));
}

// Job arrays of a command, of which no run knows.
bool is_arrays(const JobDescription& job) { return job.config.empty(); }

void show_run(const fs::path& run_dir) {
  const JobDescription job = load_job(run_dir);
  if (is_arrays(job)) {
    fmt::print("arrays    {} on {}, submitted {}\n", printable(job.name), printable(job.machine),
               submission_time(job));
    return show_jobs(job);
  }
  const RunStatus status = read_run_status(run_dir);
  fmt::print(
      "run       {} on {}: {} x {}{}, submitted {}\n", printable(job.name), printable(job.machine),
      format_number(job.nodes, "node"), format_number(job.ranks_per_node, "rank"),
      job.spare_nodes > 0 ? fmt::format(", {} spare", job.spare_nodes) : "", submission_time(job));
  show_jobs(job);
  if (status.state.empty())
    fmt::print("state     not started\n");
  else
    fmt::print("state     {}, step {} of {}{}{}{}{}, {}\n", printable(status.state), status.step,
               status.total_steps, optional_text("loss", status.loss, "{:.4f}"),
               optional_text("validation", status.valid_loss, "{:.4f}"),
               optional_text("tokens/s", status.tokens_per_s, "{:.0f}"),
               status.eta_s ? ", ETA " + format_duration(*status.eta_s) : "",
               printable(status.updated) + silence_of(status));
  if (status.attempts) fmt::print("attempts  {}\n", *status.attempts);
  if (status.goodput) fmt::print("goodput   {:.1f} %\n", *status.goodput * 100);
  if (!status.reason.empty()) fmt::print("reason    {}\n", printable(status.reason));
  if (status.exit_code) fmt::print("exit code {}\n", *status.exit_code);
}

void cancel_run(const fs::path& run_dir, bool now) {
  const JobDescription job = load_job(run_dir);
  if (job.local && now)
    user_error(
        "--now ends jobs of Slurm; {} runs on this machine: end its process, or leave out --now so "
        "that it saves",
        run_dir.string());
  const auto states = job.local ? std::vector<SlurmJobState>{} : job_states(job.job_ids);
  if (!job.local && states.empty())
    user_error("{} has no job in the queue: there is nothing to cancel", run_dir.string());
  if (job.local && (read_exit_code(run_dir) || !supervisor_is_here(run_dir)))
    user_error("the run in {} has ended, or runs on another machine: there is nothing to cancel",
               run_dir.string());
  if (now || is_arrays(job)) {  // a task saves what it has when it is ended
    kill_jobs(job.job_ids);
    return fmt::print("cancelled {}\n", fmt::join(job.job_ids, ", "));
  }
  const bool running = job.local || std::any_of(states.begin(), states.end(), [](const auto& one) {
                         return one.state == "RUNNING";
                       });
  // A job that has not started must not find it later.
  if (running) write_file_atomically(run_dir / "stop", "kintsugi launch --cancel\n");
  if (!job.local) stop_jobs(job.job_ids);
  fmt::print("{}\n", running ? "asked the run to save and stop" : "removed the job from the queue");
}

// ---- the root directory of a matrix

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

void follow_run(const fs::path& run_dir) {
  if (!fs::is_directory(run_dir)) user_error("there is no run directory {}", run_dir.string());
  const StopSignals signals;
  std::error_code ignored;
  if (!fs::exists(job_file(run_dir), ignored) && !fs::exists(run_dir / "status.json", ignored))
    user_error("{} has no run; kintsugi launch --collect lists the runs of a matrix",
               run_dir.string());
  FollowedRun run(run_dir);
  auto next_question = FollowClock::now() + kQueueInterval;
  while (StopSignals::received() == nullptr) {
    const bool ask_queue = FollowClock::now() > next_question;
    if (ask_queue) next_question = FollowClock::now() + kQueueInterval;
    const std::string end = run.end(ask_queue);
    run.print_new(!end.empty());
    if (!end.empty()) return fmt::print("{}\n", end);
    std::this_thread::sleep_for(kFollowInterval);
  }
}

}  // namespace kintsugi
