#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace kintsugi {

// The files of a campaign in DIR/.campaign. Each is replaced at once. It is written by the command
// that holds the lock or by the job of the task; a choice by each job that needs it, all alike.

std::filesystem::path campaign_folder(const std::filesystem::path& directory);  // DIR/.campaign
std::filesystem::path campaign_lock(const std::filesystem::path& directory);
std::filesystem::path campaign_stop_file(const std::filesystem::path& directory);

// The campaign as it was started: jobs read this, and not files that somebody may edit.
struct CampaignSnapshot {
  std::string source = {}, text = {};  // campaign.yaml
  std::string working_directory = {};  // in which its paths are found
  bool local = false;
  double max_gpu_hours = 0;                         // 0: no limit
  double given_gpu_hours = 0;                       // by --max-gpu-hours, which counts; 0: never
  std::map<std::string, std::string> configs = {};  // text by path
  bool operator==(const CampaignSnapshot&) const = default;
};
std::string to_json(const CampaignSnapshot& snapshot);
CampaignSnapshot snapshot_from_json(const std::string& text, const std::string& source);
std::filesystem::path snapshot_file(const std::filesystem::path& directory);

// What the command has started.
struct TaskPlan {
  std::string fingerprint = {};           // of its definition
  std::vector<std::string> job_ids = {};  // of Slurm, oldest first
  std::int64_t gpus = 0;                  // that it uses, or ranks
  double gpu_hours = 0;                   // planned, the upper end of the interval; 0: unknown
  double earlier_gpu_hours = 0;           // spent before --retry
  bool operator==(const TaskPlan&) const = default;
};

// What the task itself has written: its job, or the command that runs it here.
struct TaskProgress {
  std::string refused = {};    // why it was not started
  double began_s = 0;          // of the last start of a command; Unix time
  double spent_s = 0;          // of its earlier starts
  bool failed = false;         // it was refused because of a mistake: until --retry
  std::string chosen = {};     // by `best`: the name of a task
  std::string chosen_by = {};  // fingerprint of this `best`; empty: of an older program
  double value = 0;            // its metric
  bool operator==(const TaskProgress&) const = default;
};

std::string to_json(const TaskPlan& plan);
std::string to_json(const TaskProgress& progress);
// UserError that names `source` if the text is no such record.
TaskPlan plan_from_json(const std::string& text, const std::string& source);
TaskProgress progress_from_json(const std::string& text, const std::string& source);

// Whether the campaign has begun the task, or did before --retry.
bool has_plan(const std::filesystem::path& directory, const std::string& task);
// By the name of a task; an empty record if there is no file.
TaskPlan load_plan(const std::filesystem::path& directory, const std::string& task);
void save_plan(const std::filesystem::path& directory, const std::string& task,
               const TaskPlan& plan);
TaskProgress load_progress(const std::filesystem::path& directory, const std::string& task);
void save_progress(const std::filesystem::path& directory, const std::string& task,
                   const TaskProgress& progress);
void forget_task(const std::filesystem::path& directory, const std::string& task);
// The names of all tasks that have a plan, also those that are in no file any more.
std::vector<std::string> planned_tasks(const std::filesystem::path& directory);

}  // namespace kintsugi
