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
#include "core/child_output.h"
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
constexpr auto kGone = std::chrono::seconds(60);      // for a cancelled job to leave the queue
constexpr std::size_t kShownOutput = 2000;            // bytes of a command that failed

void save_record_of(const Campaign& campaign, std::size_t task, const TaskPlan& record) {
  save_plan(campaign.directory(), campaign.name_of(task), record);
}

// ---- commands

// What an unfinished start has left, except its scripts and output.
void clear_command(const fs::path& directory) {
  fs::create_directories(directory / "launch");
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().filename() != "launch") fs::remove_all(entry.path());
  for (const char* name : {"exit_code", "process", "output.txt", "alive"})
    fs::remove(directory / "launch" / name);
}

// It gives a sign of life every few seconds: what a killed one has used is known then.
constexpr const char* kCommandScript = R"(#!/bin/bash
# {}, by kintsugi campaign.
cd {} || exit 1
export kintsugi={}
launch={}
echo "$$ "{} >"$launch/process" || exit 1
(while kill -0 $$ && : >"$launch/alive"; do sleep 2; done) >/dev/null 2>&1 </dev/null &
beat=$!
disown
bash -e -o pipefail "$launch/line.sh" >"$launch/output.txt" 2>&1 </dev/null
code=$?
kill "$beat"
echo "$code" >"$launch/exit_code.new" && mv "$launch/exit_code.new" "$launch/exit_code"
exit "$code"
)";

void write_command(const Campaign& campaign, std::size_t task) {
  const fs::path script = command_script_of(campaign.directory_of(task));
  const fs::path line = script.parent_path() / "line.sh";
  write_file_atomically(line, command_of(campaign, task) + "\n");
  write_file_atomically(
      script, fmt::format(kCommandScript, campaign.name_of(task),
                          shell_quoted(campaign.snapshot.working_directory),
                          shell_quoted(own_program().string()),
                          shell_quoted(script.parent_path().string()), shell_quoted(node_name())));
}

void show_end_of_output(const fs::path& directory) {
  for (const std::string& line :
       read_tail(resolved(directory) / "launch/output.txt", kShownOutput).lines)
    log_message(LogLevel::Info, "  " + printable(line));
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

// Jobs that wait in the queue and will be replaced, and those that a killed command has submitted
// without a record, which do nothing.
void remove_replaced_jobs(const Campaign& campaign, const std::vector<bool>& is_missing,
                          const TaskViews& views) {
  std::vector<std::string> replaced, unrecorded;
  for (std::size_t task = 0; task < views.size(); ++task) {
    if (!is_missing[task]) continue;
    const std::vector<std::string>& known = views[task].plan.job_ids;
    if (views[task].state == TaskState::Queued) replaced.push_back(known.back());
    const fs::path directory = campaign.directory_of(task);
    if (campaign.kind_of(task) != CampaignNodeKind::Run || !fs::exists(job_file(directory)))
      continue;
    for (const std::string& id : load_job(directory).job_ids)
      if (std::find(known.begin(), known.end(), id) == known.end()) unrecorded.push_back(id);
  }
  kill_jobs(replaced);
  if (unrecorded.empty()) return;
  kill_jobs(unrecorded);
  const auto end = std::chrono::steady_clock::now() + kGone;
  while (!job_states(unrecorded).empty() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(kLook);
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
                           .program = own_program().string(),
                           .working_directory = campaign.snapshot.working_directory}};
  const JobDescription description = describe_job(machine, options, job.paths);
  if (description.chain > 1)
    user_error("node {}: launch.time is more than a job of {} may take", campaign.name_of(task),
               machine.name);
  job.script = command_script(machine, options, job.paths, description,
                              {own_program().string(), "campaign",
                               fs::absolute(campaign.directory()).lexically_normal().string(),
                               "--perform", campaign.name_of(task)});
  return job;
}

std::string submit_command(const CommandJob& job, const std::vector<std::string>& options) {
  const fs::path launch = fs::path(job.paths.run_dir) / "launch";
  fs::create_directories(launch);
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

void check_not_failed(const Campaign& campaign, const std::string& name) {
  const TaskProgress progress = load_progress(campaign.directory(), name);
  if (progress.failed) failure("{} does not begin: {}", name, progress.refused);
}

std::size_t admit_task(const Campaign& campaign, const std::string& name) {
  const std::size_t task = campaign.graph.named(name).front();
  check_own_job(campaign.directory(), name);
  check_not_failed(campaign, name);
  TaskViews views = look_at_tasks(campaign.graph);
  const std::string why = refusal(campaign, task, views);
  TaskProgress progress = load_progress(campaign.directory(), name);
  if (progress.refused != why) {
    progress.refused = why;
    save_progress(campaign.directory(), name, progress);
  }
  if (!why.empty()) failure("{} does not begin: {}", name, why);
  return task;
}

}  // namespace

TaskPlan record_of(const Campaign& campaign, std::size_t task, const CampaignPlan& plan) {
  TaskPlan record = load_plan(campaign.directory(), campaign.name_of(task));
  record.fingerprint = campaign.fingerprint(task);
  record.gpus = plan.tasks[task].gpus;
  record.gpu_hours = plan.tasks[task].forecast.most_gpu_hours();
  return record;
}

bool can_begin(TaskState state) {
  return state == TaskState::Waiting || state == TaskState::Stopped;
}

fs::path begin_command(const Campaign& campaign, std::size_t task) {
  const fs::path directory = campaign.directory_of(task);
  const std::string& name = campaign.name_of(task);
  TaskProgress progress = load_progress(campaign.directory(), name);
  progress.spent_s = command_seconds(directory, progress, false);
  progress.began_s = 0;
  save_progress(campaign.directory(), name, progress);  // before the files that say it are removed
  clear_command(directory);
  write_command(campaign, task);
  progress.began_s = unix_time_s();
  save_progress(campaign.directory(), name, progress);
  return command_script_of(directory);
}

int end_command(const Campaign& campaign, std::size_t task, int code) {
  if (code == 128 + SIGINT || code == 128 + SIGTERM || code == 128 + SIGHUP)
    return exit_code::kStopped;
  if (code != exit_code::kFinished) show_end_of_output(campaign.directory_of(task));
  return code;
}

int submit_campaign(const Campaign& campaign, const CampaignPlan& plan, const TaskViews& views) {
  require_slurm();
  std::vector<PreparedRuns> runs(views.size());
  std::vector<CommandJob> commands(views.size());
  const std::vector<bool> is_missing = tasks_to_submit(campaign, views);
  remove_replaced_jobs(campaign, is_missing, views);
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
  std::vector<std::string> submitted;
  for (std::size_t task = 0; task < views.size(); ++task) {
    if (views[task].active() && !is_missing[task] && !views[task].plan.job_ids.empty())
      jobs[task] = views[task].plan.job_ids.back();
    if (!is_missing[task]) continue;
    if (fs::exists(campaign_stop_file(campaign.directory()))) {
      kill_jobs(submitted);
      log_note("--cancel was given meanwhile: what was submitted is cancelled");
      return exit_code::kStopped;
    }
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
    submitted.push_back(jobs[task]);
  }
  return exit_code::kFinished;
}

void enter_task(const fs::path& directory, const std::string& name) {
  const Campaign campaign = started_campaign(directory);
  const std::size_t task = admit_task(campaign, name);
  try {
    PreparedRuns runs = prepare_task(campaign, task, PrepareFor::InJob, campaign.choices());
    const PreparedRun& run = runs.list.front();
    write_config_file(run.job.config, run.config);
  } catch (const UserError& error) {  // nobody else would show it
    fail_task(campaign, task, error.what());
    throw;
  }
}

int perform_task(const fs::path& directory, const std::string& name) {
  const Campaign campaign = started_campaign(directory);
  const std::size_t task = admit_task(campaign, name);
  return end_command(campaign, task, run_script(begin_command(campaign, task)));
}

}  // namespace kintsugi
