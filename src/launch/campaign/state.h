#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/campaign/graph.h"
#include "launch/campaign/record.h"
#include "report/runs/run_status.h"

namespace kintsugi {

enum class TaskState : std::uint8_t {
  Waiting,  // for others, or to be started
  Queued,   // in the queue of Slurm
  Running,
  Done,
  Stopped,   // or interrupted: the same command continues it
  Failed,    // until --retry
  Diverged,  // a failed run, without which `best` goes on
  Blocked    // one that it needs has failed
};
std::string_view to_string(TaskState state);

// What the files of a task say.
struct TaskView {
  TaskState state = TaskState::Waiting;
  std::optional<RunStatus> run = {};  // of a run that has begun
  TaskPlan plan = {};
  TaskProgress progress = {};
  std::optional<int> exit_code = {};
  std::string queue = {};  // states of its jobs in Slurm
  double job_began_s = 0;  // Unix time, of the job that runs; 0: none does
  double gpu_hours = 0;    // spent
  std::optional<double> joules = {};
  bool compared = false;  // a `best` chooses from it and others

  bool active() const { return state == TaskState::Running || state == TaskState::Queued; }
  bool ended() const {
    return state == TaskState::Done || (state == TaskState::Diverged && compared);
  }
  bool broken() const {  // until --retry
    return state == TaskState::Failed || state == TaskState::Diverged ||
           state == TaskState::Blocked;
  }
};

// All tasks, in the order of the graph. Asks Slurm once if a task has jobs there.
std::vector<TaskView> look_at_tasks(const CampaignGraph& graph);
TaskView look_at_task(const CampaignGraph& graph, std::size_t task);  // without Slurm's queue

// The script of a command, which is absolute; it writes `process`, `output.txt` and `exit_code`
// beside itself, and `alive` every few seconds.
std::filesystem::path command_script_of(const std::filesystem::path& directory);
// How long a command has run, in all of its starts.
double command_seconds(const std::filesystem::path& directory, const TaskProgress& progress,
                       bool running);

// Why a task cannot begin: "needs long, which has failed"; empty: it can. `views`: as above.
std::string missing_need(const CampaignGraph& graph, std::size_t task,
                         const std::vector<TaskView>& views);

// GPU-hours (rank-hours without GPUs) of all tasks, also of those that are not in the file any
// more.
double spent_gpu_hours(const CampaignGraph& graph, const std::vector<TaskView>& views);
// Tasks that have begun and are not in the graph any more.
std::vector<std::string> removed_tasks(const CampaignGraph& graph);

// Identifies what a task does; it changes if its definition is edited. For a `best`, also if the
// runs that it compares are others.
std::string task_fingerprint(const CampaignGraph& graph, const CampaignTask& task,
                             const std::string& config_text);

// The choice of a `best`: of the runs that have ended, the one with the lowest or highest value of
// the metric at its end. UserError if no run has one.
struct CampaignChoice {
  std::size_t task = 0;
  double value = 0;
};
CampaignChoice choose_best(const CampaignGraph& graph, const CampaignTask& best,
                           const std::vector<TaskView>& views);
// The last value of a metric in the metrics.jsonl of a run.
std::optional<double> last_metric(const std::filesystem::path& run_dir, const std::string& metric);

}  // namespace kintsugi
