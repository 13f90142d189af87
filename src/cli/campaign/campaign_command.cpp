#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/campaign/campaign.h"
#include "cli/campaign/campaign_jobs.h"
#include "cli/campaign/campaign_plan.h"
#include "cli/campaign/campaign_status.h"
#include "cli/campaign/local_jobs.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/file_lock.h"
#include "core/log.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

struct CampaignArguments {
  std::string campaign;
  bool local = false, yes = false, dry_run = false, status = false, cancel = false;
  double max_gpu_hours = 0;
  std::int64_t jobs = 1;
  std::vector<std::string> retry = {};
  std::string enter, perform;  // a task
};

void refuse_idle_campaign_options(const CLI::App& command) {
  const std::vector<std::string> tasks = {"--status", "--cancel", "--enter", "--perform"};
  for (const std::string& task : tasks) {
    if (command.count(task) == 0) continue;
    for (const CLI::Option* option : command.get_options())
      if (option->count() > 0 && option->get_name() != task && option->get_name() != "campaign")
        user_error("{} has no effect with {}: remove one of them", option->get_name(), task);
  }
}

// Held from the checks to the end. Leaves no empty directories behind.
class CampaignLock {
 public:
  explicit CampaignLock(const fs::path& directory) : directory_(directory) {
    std::error_code error;
    fs::create_directories(campaign_folder(directory), error);
    if (error)
      user_error("cannot create {}: {}", campaign_folder(directory).string(), error.message());
    std::string holder;
    lock_ = FileLock::try_take(campaign_lock(directory), holder);
    if (!lock_) user_error("the campaign in {} is in use by {}", directory.string(), holder);
  }
  ~CampaignLock() {
    lock_.reset();
    std::error_code ignored;
    if (fs::remove(campaign_folder(directory_), ignored)) fs::remove(directory_, ignored);
  }
  CampaignLock(const CampaignLock&) = delete;
  CampaignLock& operator=(const CampaignLock&) = delete;

 private:
  fs::path directory_;
  std::unique_ptr<FileLock> lock_;
};

// The plan, checked and printed.
CampaignPlan show_plan(const Campaign& campaign, const std::vector<TaskView>& views) {
  for (const std::string& typo : likely_typos(campaign.graph.definition()))
    log_warning("{}: there is no such node, so it stays as it is", typo);
  check_unedited(campaign, views);
  CampaignPlan plan = plan_campaign(campaign, views);
  fmt::print("{}", plan_text(campaign, plan, views));
  std::fflush(stdout);
  return plan;
}

bool has_open_tasks(const CampaignPlan& plan) {
  for (const PlannedTask& task : plan.tasks)
    if (task.open) return true;
  return false;
}

// As if those that --retry names, and what waits for them, were to begin.
std::vector<TaskView> with_retried(const Campaign& campaign, const std::vector<std::string>& names,
                                   std::vector<TaskView> views) {
  std::vector<std::size_t> tasks = tasks_of_retry(campaign, names);
  for (const std::size_t task : campaign.graph.followers(tasks)) tasks.push_back(task);
  for (const std::size_t task : tasks)
    if (views[task].broken()) views[task].state = TaskState::Waiting;
  return views;
}

// Whether another command asked it to stop meanwhile.
bool was_cancelled(const Campaign& campaign) {
  if (!fs::remove(campaign_stop_file(campaign.directory()))) return false;
  log_note("nothing was started: --cancel was given meanwhile");
  return true;
}

int start_campaign(const CampaignArguments& arguments, Campaign campaign) {
  const CampaignLock lock(campaign.directory());
  fs::remove(campaign_stop_file(campaign.directory()));  // of an earlier --cancel
  if (!arguments.retry.empty()) {
    const std::vector<TaskView> before = look_at_tasks(campaign.graph);
    // Refuses what is wrong before anything is put aside.
    plan_campaign(campaign, with_retried(campaign, arguments.retry, before));
    retry_tasks(campaign, arguments.retry, before);
  }
  const std::vector<TaskView> views = look_at_tasks(campaign.graph);
  const CampaignPlan plan = show_plan(campaign, views);
  check_budget(campaign, plan, views);
  if (has_open_tasks(plan) && !arguments.yes) confirm_plan();
  if (was_cancelled(campaign)) return exit_code::kStopped;
  write_file_atomically(snapshot_file(campaign.directory()), to_json(campaign.snapshot));
  if (campaign.snapshot.local) return run_campaign_here(campaign, plan, arguments.jobs);
  return submit_campaign(campaign, plan, views);
}

void run_campaign_command(const CLI::App& command, const CampaignArguments& arguments) {
  refuse_idle_campaign_options(command);
  if (command.count("--jobs") > 0 && !arguments.local)
    user_error("--jobs has no effect without --local: add it, or remove --jobs");
  if (!arguments.enter.empty()) return enter_task(arguments.campaign, arguments.enter);
  int code = exit_code::kFinished;
  if (!arguments.perform.empty()) {
    code = perform_task(arguments.campaign, arguments.perform);
  } else {
    Campaign campaign = open_campaign(arguments.campaign);
    if (arguments.status || arguments.cancel) {
      // As it was started: its file may have been edited since.
      if (fs::exists(snapshot_file(campaign.directory())))
        campaign = started_campaign(campaign.directory());
      const std::vector<TaskView> views = look_at_tasks(campaign.graph);
      arguments.cancel ? cancel_campaign(campaign, views)
                       : fmt::print("{}", status_text(campaign, views));
      return;
    }
    campaign.snapshot.local = arguments.local;
    if (arguments.max_gpu_hours > 0)
      campaign.snapshot.max_gpu_hours = campaign.snapshot.given_gpu_hours = arguments.max_gpu_hours;
    if (arguments.dry_run) {
      show_plan(campaign, look_at_tasks(campaign.graph));
      return;
    }
    code = start_campaign(arguments, std::move(campaign));
  }
  if (code != exit_code::kFinished) throw CLI::RuntimeError(code);
}

}  // namespace

void add_campaign_command(CLI::App& app) {
  auto arguments = std::make_shared<CampaignArguments>();
  CLI::App* command = app.add_subcommand(
      "campaign",
      "Run sweeps, longer runs, branches, merges and evaluations that follow each other");
  const AddOption add(*command);
  add("campaign", arguments->campaign,
      "What to do: a YAML file (docs/campaigns.md), or the directory of a campaign that was "
      "started",
      kRequired);
  add("--local", arguments->local, "One job after the other on this machine, instead of Slurm");
  add("--jobs", arguments->jobs, "With --local: so many jobs at the same time",
      whole_number(between(1, 1024)));
  add("--yes", arguments->yes, "Start without asking");
  add("--max-gpu-hours", arguments->max_gpu_hours,
      "Start nothing that would exceed so many GPU-hours, in this and all later commands (default: "
      "campaign.max_gpu_hours)",
      real_number(above(0)));
  add("--dry-run", arguments->dry_run, "Check everything and print the plan; start nothing");
  add("--status", arguments->status, "Show the campaign as a tree, with progress and budget");
  add("--cancel", arguments->cancel,
      "Ask what runs to save and stop, and remove what waits from the queue");
  add("--retry", arguments->retry,
      "Continue this failed node, or do one that has ended again, with all that follows from it "
      "(repeatable)",
      TypeName{"NODE"}, kRepeatable);
  add("--enter", arguments->enter, "Used by job scripts: before a run", TypeName{"NODE"});
  add("--perform", arguments->perform, "Used by job scripts: runs a command", TypeName{"NODE"});
  command->footer(
      "Examples:\n"
      "  kintsugi campaign campaign.yaml --dry-run\n"
      "  kintsugi campaign campaign.yaml --local --yes\n"
      "  kintsugi campaign campaign.yaml --max-gpu-hours 5000\n"
      "  kintsugi campaign campaign.yaml --status\n"
      "\n"
      "The same command continues: only what is missing is started.\n"
      "Exit codes: 0 done (with Slurm: submitted), 1 a job has failed, 2 a mistake, or the budget "
      "does not suffice, 75 stopped.");
  command->callback([command, arguments] { run_campaign_command(*command, *arguments); });
}

}  // namespace kintsugi
