#include "cli/campaign/campaign_jobs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <set>
#include <thread>

#include "cli/launch/submit.h"
#include "comm/launch_environment.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "launch/child_session.h"
#include "launch/job_description.h"
#include "launch/job_script.h"
#include "launch/slurm.h"
#include "plan/machines/machine.h"
#include "report/runs/run_file.h"
#include "train/startup.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using TaskViews = std::vector<TaskView>;

constexpr auto kLook = std::chrono::milliseconds(200);
constexpr auto kRecorded = std::chrono::seconds(60);  // for the id of a job to be written
constexpr std::size_t kShownOutput = 2000;            // bytes of a command that failed

std::string own_program() { return fs::read_symlink("/proc/self/exe").string(); }

TaskPlan record_of(const Campaign& campaign, std::size_t task, const CampaignPlan& plan) {
  TaskPlan record = load_plan(campaign.directory(), campaign.name_of(task));
  record.fingerprint = campaign.fingerprint(task);
  record.gpus = plan.tasks[task].gpus;
  record.gpu_hours = plan.tasks[task].forecast.most_gpu_hours();
  return record;
}

void save_record_of(const Campaign& campaign, std::size_t task, const TaskPlan& record) {
  save_plan(campaign.directory(), campaign.name_of(task), record);
}

bool can_begin(TaskState state) {
  return state == TaskState::Waiting || state == TaskState::Stopped;
}

// ---- commands

// What an unfinished start has left, except its scripts and output.
void clear_command(const fs::path& directory) {
  fs::create_directories(directory / "launch");
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().filename() != "launch") fs::remove_all(entry.path());
  for (const char* name : {"exit_code", "process", "output.txt"})
    fs::remove(directory / "launch" / name);
}

void write_command(const Campaign& campaign, std::size_t task) {
  const fs::path script = command_script_of(campaign.directory_of(task));
  const fs::path line = script.parent_path() / "line.sh";
  write_file_atomically(line, command_of(campaign, task) + "\n");
  write_file_atomically(
      script, fmt::format("#!/bin/bash\n# {}, by kintsugi campaign.\ncd {} || exit 1\n"
                          "export kintsugi={}\ncd {} && echo \"$$ {}\" >process && cd - >/dev/null "
                          "|| exit 1\n"
                          "bash -e -o pipefail {} >{} 2>&1 </dev/null\ncode=$?\n"
                          "echo \"$code\" >{}.new && mv {}.new {}\nexit \"$code\"\n",
                          campaign.name_of(task), shell_quoted(campaign.snapshot.working_directory),
                          shell_quoted(own_program()), shell_quoted(script.parent_path().string()),
                          node_name(), shell_quoted(line.string()),
                          shell_quoted((script.parent_path() / "output.txt").string()),
                          shell_quoted((script.parent_path() / "exit_code").string()),
                          shell_quoted((script.parent_path() / "exit_code").string()),
                          shell_quoted((script.parent_path() / "exit_code").string())));
}

void show_end_of_output(const fs::path& directory) {
  for (const std::string& line :
       read_tail(resolved(directory) / "launch/output.txt", kShownOutput).lines)
    log_message(LogLevel::Info, "  " + printable(line));
}

int run_command(const Campaign& campaign, std::size_t task) {
  const fs::path directory = campaign.directory_of(task);
  const std::string& name = campaign.name_of(task);
  TaskProgress progress = load_progress(campaign.directory(), name);
  progress.spent_s = command_seconds(directory, progress, false);
  clear_command(directory);
  write_command(campaign, task);
  progress.began_s = unix_time_s();
  save_progress(campaign.directory(), name, progress);
  const int code = run_script(command_script_of(directory));
  if (code == 128 + SIGINT || code == 128 + SIGTERM || code == 128 + SIGHUP)
    return exit_code::kStopped;
  if (code != exit_code::kFinished) show_end_of_output(directory);
  return code;
}

// ---- on this machine

int start_here(const Campaign& campaign, std::size_t task, const CampaignPlan& plan) {
  const std::string& name = campaign.name_of(task);
  save_record_of(campaign, task, record_of(campaign, task, plan));
  log_note("{}: begins", name);
  if (campaign.kind_of(task) == CampaignNodeKind::Command) return run_command(campaign, task);
  PreparedRuns runs = prepare_task(campaign, task, PrepareFor::Start, campaign.choices());
  return run_locally(runs.list);
}

// Something that a killed command of this campaign has left, or a job of Slurm.
std::optional<std::size_t> active_task(const TaskViews& views) {
  for (std::size_t task = 0; task < views.size(); ++task)
    if (views[task].active()) return task;
  return {};
}

std::optional<std::size_t> next_task(const Campaign& campaign, const TaskViews& views,
                                     const std::set<std::size_t>& tried) {
  for (std::size_t task = 0; task < views.size(); ++task)
    if (campaign.kind_of(task) != CampaignNodeKind::Best && can_begin(views[task].state) &&
        !tried.contains(task) && missing_need(campaign.graph, task, views).empty())
      return task;
  return {};
}

// What is left when nothing more can begin.
int end_of_campaign(const Campaign& campaign, const TaskViews& views) {
  std::int64_t done = 0;
  std::vector<std::string> left;
  for (std::size_t task = 0; task < views.size(); ++task)
    if (views[task].ended())
      ++done;
    else if (views[task].state != TaskState::Blocked && views[task].state != TaskState::Waiting)
      left.push_back(fmt::format("{} is {}", campaign.name_of(task), to_string(views[task].state)));
  if (done == static_cast<std::int64_t>(views.size())) {
    log_note("the campaign in {} is done", campaign.directory().string());
    return exit_code::kFinished;
  }
  failure("{} of {} jobs of the campaign are done; {}", done, views.size(), fmt::join(left, ", "));
}

// ---- with Slurm

// Jobs that end before this one begins: those of `best` are the jobs that it compares.
void add_needed_jobs(const Campaign& campaign, std::size_t task,
                     const std::vector<std::string>& jobs, std::set<std::string>& ids) {
  for (const std::size_t need : campaign.graph.task(task).needs)
    if (campaign.kind_of(need) == CampaignNodeKind::Best)
      add_needed_jobs(campaign, need, jobs, ids);
    else if (!jobs[need].empty())
      ids.insert(jobs[need]);
}

// Tasks to be submitted: those that are missing, and those that wait in the queue for a job that
// has not done its task.
std::vector<bool> tasks_to_submit(const Campaign& campaign, const TaskViews& views) {
  std::vector<bool> chosen(views.size(), false), moved(views.size(), false);
  for (std::size_t task = 0; task < views.size(); ++task) {
    const bool follows =
        std::any_of(campaign.graph.task(task).needs.begin(), campaign.graph.task(task).needs.end(),
                    [&](std::size_t need) { return moved[need]; });
    const bool best = campaign.kind_of(task) == CampaignNodeKind::Best;
    chosen[task] = !best && (can_begin(views[task].state) ||
                             (follows && views[task].state == TaskState::Queued));
    moved[task] = chosen[task] || (best && follows);
  }
  return chosen;
}

// A command, as a job.
struct CommandJob {
  JobPaths paths = {};
  std::string script = {};
};
CommandJob command_job(const Campaign& campaign, std::size_t task) {
  const LaunchRequest request = request_of(campaign, task);
  LaunchOptions options = request.options;
  options.no_requeue = true;
  options.requeue = false;
  const Machine machine = load_machine(request.machine);
  CommandJob job{.paths = {.run_dir = fs::absolute(campaign.directory_of(task)).string(),
                           .program = own_program(),
                           .working_directory = campaign.snapshot.working_directory}};
  const JobDescription description = describe_job(machine, options, job.paths);
  if (description.chain > 1)
    user_error("node {}: launch.time is more than a job of {} may take", campaign.name_of(task),
               machine.name);
  job.script = command_script(
      machine, options, job.paths, description,
      {own_program(), "campaign", fs::absolute(campaign.directory()).lexically_normal().string(),
       "--perform", campaign.name_of(task)});
  return job;
}

std::string submit_command(const CommandJob& job, const std::vector<std::string>& options) {
  const fs::path launch = fs::path(job.paths.run_dir) / "launch";
  fs::create_directories(launch);
  fs::remove(launch / "exit_code");
  write_file_atomically(launch / "job.sh", job.script);
  return submit_job(launch / "job.sh", options);
}

std::vector<std::string> dependency_option(const std::set<std::string>& ids) {
  if (ids.empty()) return {};
  return {fmt::format("--dependency=afterany:{}", fmt::join(ids, ":"))};
}

// The id of the job of this process; empty: it is none.
std::string own_job_id() {
  for (const char* name : {"SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID"})
    if (const char* id = std::getenv(name)) return id;
  return "";
}

// A command that was killed after it submitted a job has not recorded it, and its successor submits
// another one.
void check_own_job(const fs::path& directory, const std::string& name) {
  const std::string id = own_job_id();
  if (id.empty()) return;
  const auto end = std::chrono::steady_clock::now() + kRecorded;
  for (;;) {
    const std::vector<std::string> ids = load_plan(directory, name).job_ids;
    if (std::find(ids.begin(), ids.end(), id) != ids.end()) {
      if (ids.back() == id) return;
      failure("job {} of {} was replaced by job {}", id, name, ids.back());
    }
    if (std::chrono::steady_clock::now() > end)
      failure("job {} is not in the records of {}: it does nothing", id, name);
    std::this_thread::sleep_for(kLook);
  }
}

// Why a task must not begin; empty: it may.
std::string refusal(const Campaign& campaign, std::size_t task, TaskViews& views) {
  make_choices(campaign, views);
  const std::string missing = missing_need(campaign.graph, task, views);
  if (!missing.empty()) return missing;
  return over_budget(campaign, task, views[task].plan.gpu_hours, views);
}

std::size_t admit_task(const Campaign& campaign, const std::string& name) {
  const std::size_t task = campaign.graph.named(name).front();
  check_own_job(campaign.directory(), name);
  TaskViews views = look_at_tasks(campaign.graph);
  std::string why;
  try {
    why = refusal(campaign, task, views);
  } catch (const UserError& error) {  // of a choice
    why = error.what();
  }
  TaskProgress progress = load_progress(campaign.directory(), name);
  if (progress.refused != why) {
    progress.refused = why;
    save_progress(campaign.directory(), name, progress);
  }
  if (!why.empty()) failure("{} does not begin: {}", name, why);
  return task;
}

}  // namespace

int run_campaign_here(const Campaign& campaign, const CampaignPlan& plan, TaskViews views) {
  std::set<std::size_t> tried;
  std::optional<std::size_t> awaited;
  for (;; views = look_at_tasks(campaign.graph)) {
    if (fs::exists(campaign_stop_file(campaign.directory()))) return exit_code::kStopped;
    if (const auto active = active_task(views)) {
      if (active != awaited) log_note("waits for {}, which still runs", campaign.name_of(*active));
      awaited = active;
      std::this_thread::sleep_for(kLook);
      continue;
    }
    make_choices(campaign, views);
    const auto task = next_task(campaign, views, tried);
    if (!task) return end_of_campaign(campaign, views);
    const std::string over =
        over_budget(campaign, *task, plan.tasks[*task].forecast.most_gpu_hours(), views);
    if (!over.empty())
      user_error("{} was not started because of {}", campaign.name_of(*task), over);
    tried.insert(*task);
    const int code = start_here(campaign, *task, plan);
    if (code == exit_code::kStopped) return code;
    if (code != exit_code::kFinished)
      log_warning("{} ended with exit code {}", campaign.name_of(*task), code);
  }
}

void submit_campaign(const Campaign& campaign, const CampaignPlan& plan, const TaskViews& views) {
  require_slurm();
  std::vector<PreparedRuns> runs(views.size());
  std::vector<CommandJob> commands(views.size());
  const std::vector<bool> is_missing = tasks_to_submit(campaign, views);
  std::vector<std::string> replaced;
  for (std::size_t task = 0; task < views.size(); ++task)
    if (is_missing[task] && views[task].state == TaskState::Queued)
      replaced.push_back(views[task].plan.job_ids.back());
  kill_jobs(replaced);
  for (std::size_t task = 0; task < views.size(); ++task) {
    if (!is_missing[task]) continue;
    if (campaign.kind_of(task) == CampaignNodeKind::Command) {
      commands[task] = command_job(campaign, task);
      continue;
    }
    runs[task].list = std::move(
        prepare_task(campaign, task, PrepareFor::Submit, possible_choices(campaign, task).front())
            .list);
    check_partitions(runs[task].list);
  }
  std::vector<std::string> jobs(views.size());  // that a follower waits for
  for (std::size_t task = 0; task < views.size(); ++task) {
    if (views[task].active() && !is_missing[task] && !views[task].plan.job_ids.empty())
      jobs[task] = views[task].plan.job_ids.back();
    if (!is_missing[task]) continue;
    std::set<std::string> ids;
    add_needed_jobs(campaign, task, jobs, ids);
    const std::vector<std::string> options = dependency_option(ids);
    const bool command = campaign.kind_of(task) == CampaignNodeKind::Command;
    if (!command) submit_runs(runs[task].list, options);
    jobs[task] = command ? submit_command(commands[task], options)
                         : runs[task].list.front().job.job_ids.back();
    TaskPlan record = record_of(campaign, task, plan);
    record.job_ids.push_back(jobs[task]);
    save_record_of(campaign, task, record);
    fmt::print("submitted job {}: {}{}\n", jobs[task], campaign.name_of(task),
               ids.empty() ? "" : fmt::format(" (after {})", fmt::join(ids, ", ")));
  }
}

void enter_task(const fs::path& directory, const std::string& name) {
  const Campaign campaign = started_campaign(directory);
  const std::size_t task = admit_task(campaign, name);
  PreparedRuns runs = prepare_task(campaign, task, PrepareFor::InJob, campaign.choices());
  const PreparedRun& run = runs.list.front();
  write_config_file(run.job.config, run.config);
}

int perform_task(const fs::path& directory, const std::string& name) {
  const Campaign campaign = started_campaign(directory);
  return run_command(campaign, admit_task(campaign, name));
}

}  // namespace kintsugi
