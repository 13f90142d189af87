#include "launch/campaign/state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "comm/launch_environment.h"
#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/json_members.h"
#include "core/units.h"
#include "launch/job_description.h"
#include "launch/slurm.h"
#include "launch/supervisor.h"
#include "report/documents/exports.h"
#include "report/runs/run_file.h"
#include "report/runs/run_summary.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostAttemptBytes = 1 << 20;
constexpr std::size_t kMostMetricBytes = 4 << 20;
constexpr std::size_t kMostStateBytes = 1 << 16;
constexpr double kHour_s = 3600;

double now_s() { return static_cast<double>(std::time(nullptr)); }

// Node-hours of the attempts of a run, times the ranks of a node. An attempt that goes on counts
// until now: not one that is older than the job which runs, because that job was requeued.
double run_gpu_hours(const fs::path& run_dir, const TaskView& view, bool here) {
  constexpr double kRounding_s = 2;  // of Slurm's times
  if (!fs::exists(job_file(run_dir))) return 0;
  const JobDescription job = load_job(run_dir);
  double node_s = 0;
  const auto add = [&](double began_s, double ended_s, std::int64_t nodes) {
    node_s += std::max(0.0, ended_s - began_s) * static_cast<double>(nodes + job.spare_nodes);
  };
  for (const std::string& line :
       read_tail(resolved(run_dir) / "launch/attempts.jsonl", kMostAttemptBytes).lines)
    if (const auto json = parse_untrusted_json(line))
      add(number_at(*json, "began").value_or(0), number_at(*json, "ended").value_or(0),
          count_at(*json, "nodes"));
  if (const OpenAttempt open = open_attempt(run_dir); open.began_s > 0) {
    const bool in_job = view.job_began_s > 0 && open.began_s + kRounding_s >= view.job_began_s;
    add(open.began_s, here || in_job ? now_s() : open.seen_s,
        open.nodes > 0 ? open.nodes : job.nodes);
  }
  return node_s / kHour_s * static_cast<double>(job.ranks_per_node);
}

// Whether the script of a command is a process of this machine, also if who started it was killed.
bool command_is_here(const fs::path& directory) {
  const fs::path launch = resolved(directory) / "launch";
  std::istringstream file(read_run_file(launch / "process", kMostStateBytes).text);
  pid_t process = 0;
  std::string host;
  if (!(file >> process >> host) || host != node_name() || process <= 0) return false;
  std::ifstream words(fmt::format("/proc/{}/cmdline", process), std::ios::binary);
  std::string word;
  while (std::getline(words, word, '\0'))
    if (word == command_script_of(directory).string()) return true;
  return false;
}

double changed_s(const fs::path& file) {
  const auto stamp = stamp_of(file);
  return stamp ? stamp->changed_s() : 0;
}

TaskState state_of_code(int code, bool is_run) {
  switch (code) {
    case exit_code::kFinished:
      return TaskState::Done;
    case exit_code::kStopped:
      return TaskState::Stopped;
    case exit_code::kDiverged:
      return is_run ? TaskState::Diverged : TaskState::Failed;
    case exit_code::kFailure:
      return is_run ? TaskState::Stopped : TaskState::Failed;  // another attempt may succeed
    default:
      return TaskState::Failed;
  }
}

void look_at_run(const fs::path& directory, TaskView& view) {
  const RunStatus status = read_run_status(directory);
  const bool here = !status.exit_code && supervisor_is_here(directory);
  if (!status.state.empty()) view.run = status;
  if (status.state == "finished" && !here && status.exit_code.value_or(0) == 0)
    view.state = TaskState::Done;
  else if (here)
    view.state = TaskState::Running;
  else if (status.exit_code == exit_code::kFinished)  // of a launcher whose ranks were lost
    view.state = TaskState::Stopped;
  else if (status.exit_code)
    view.state = state_of_code(*status.exit_code, true);
  else if (!status.state.empty())
    view.state = TaskState::Stopped;
  view.exit_code = status.exit_code;
  view.gpu_hours = run_gpu_hours(directory, view, here);
  SummaryReader summary(directory);
  summary.refresh(this_machine());
  view.joules = summary.summary().energy_j;
}

void look_at_command(const fs::path& directory, TaskView& view) {
  const bool here = command_is_here(directory);
  view.exit_code = read_exit_code(directory);
  if (view.exit_code)
    view.state = state_of_code(*view.exit_code, false);
  else if (here)
    view.state = TaskState::Running;
  else if (view.progress.began_s > 0)
    view.state = TaskState::Stopped;
  view.gpu_hours = command_seconds(directory, view.progress, here && !view.exit_code) / kHour_s *
                   static_cast<double>(view.plan.gpus);
}

// A job in the queue may not have begun, or be between two attempts.
void heed_queue(TaskView& view) {
  if (view.queue.empty() || view.state == TaskState::Done) return;
  if (view.queue == "COMPLETING" && view.exit_code) return;
  if (view.queue.find("RUNNING") != std::string::npos ||
      view.queue.find("COMPLETING") != std::string::npos)
    view.state = TaskState::Running;
  else
    view.state = TaskState::Queued;
}

// The jobs of a task that are in the queue.
struct QueuedJobs {
  std::string states = {};
  double began_s = 0;  // of the one that runs; 0: none does
};

TaskView look(const CampaignGraph& graph, const CampaignTask& task, const QueuedJobs& queue) {
  TaskView view{.plan = load_plan(graph.directory(), task.name),
                .progress = load_progress(graph.directory(), task.name),
                .queue = queue.states,
                .job_began_s = queue.began_s};
  const fs::path directory = graph.directory_of(task);
  switch (graph.node_of(task).kind) {
    case CampaignNodeKind::Run:
      look_at_run(directory, view);
      break;
    case CampaignNodeKind::Command:
      look_at_command(directory, view);
      break;
    case CampaignNodeKind::Best:
      if (!view.progress.chosen.empty()) view.state = TaskState::Done;
      break;
  }
  view.gpu_hours += view.plan.earlier_gpu_hours;
  if (view.progress.failed && view.state != TaskState::Done) view.state = TaskState::Failed;
  heed_queue(view);
  return view;
}

double start_of(const SlurmJobState& job) {
  if (job.state != "RUNNING" && job.state != "COMPLETING") return 0;
  try {
    return now_s() - parse_slurm_time(job.elapsed).value_or(0);
  } catch (const Failure&) {  // Slurm does not know it
    return now_s();
  }
}

// By the id of a job or of its array.
std::map<std::string, QueuedJobs> queued_jobs(const CampaignGraph& graph) {
  std::vector<std::string> ids;
  for (const CampaignTask& task : graph.tasks())
    for (const std::string& id : load_plan(graph.directory(), task.name).job_ids) ids.push_back(id);
  std::map<std::string, QueuedJobs> jobs;
  if (ids.empty() || !slurm_is_here()) return jobs;
  for (const SlurmJobState& one : job_states(ids)) {
    QueuedJobs& all = jobs[one.id.substr(0, one.id.find('_'))];
    if (all.states.find(one.state) == std::string::npos)
      all.states += (all.states.empty() ? "" : "+") + one.state;
    all.began_s = std::max(all.began_s, start_of(one));
  }
  return jobs;
}

// `best` compares what has ended, and goes on without the runs that have diverged.
bool tolerates(const CampaignGraph& graph, const CampaignTask& task, TaskState need) {
  return need == TaskState::Diverged && graph.node_of(task).kind == CampaignNodeKind::Best;
}

// Tasks with a plan that are not in the graph.
std::vector<std::string> planned_outside(const CampaignGraph& graph) {
  std::vector<std::string> names = planned_tasks(graph.directory());
  std::erase_if(names, [&](const std::string& name) {
    return std::any_of(graph.tasks().begin(), graph.tasks().end(),
                       [&](const CampaignTask& task) { return task.name == name; });
  });
  return names;
}

}  // namespace

std::string_view to_string(TaskState state) {
  return enum_name(
      state, {"waiting", "queued", "running", "done", "stopped", "failed", "diverged", "blocked"});
}

fs::path command_script_of(const fs::path& directory) {
  return fs::absolute(directory).lexically_normal() / "launch" / "command.sh";
}

double command_seconds(const fs::path& directory, const TaskProgress& progress, bool running) {
  if (progress.began_s <= 0) return progress.spent_s;
  const fs::path launch = resolved(directory) / "launch";
  double end = running ? now_s() : changed_s(launch / "exit_code");
  if (end <= 0)  // it was killed, or is on another node
    end = std::max(changed_s(launch / "alive"), changed_s(launch / "output.txt"));
  return progress.spent_s + std::max(0.0, end - progress.began_s);
}

TaskView look_at_task(const CampaignGraph& graph, std::size_t task) {
  return look(graph, graph.task(task), {});
}

std::vector<TaskView> look_at_tasks(const CampaignGraph& graph) {
  const auto queue = queued_jobs(graph);
  std::vector<TaskView> views;
  for (const CampaignTask& task : graph.tasks()) {
    QueuedJobs jobs;
    for (const std::string& id : load_plan(graph.directory(), task.name).job_ids)
      if (const auto found = queue.find(id); found != queue.end()) jobs = found->second;
    TaskView view = look(graph, task, jobs);
    const bool blocked = std::any_of(task.needs.begin(), task.needs.end(), [&](std::size_t need) {
      return views[need].broken() && !tolerates(graph, task, views[need].state);
    });
    if (blocked && view.state == TaskState::Waiting) view.state = TaskState::Blocked;
    views.push_back(std::move(view));
  }
  for (const CampaignNode& node : graph.definition().nodes)
    if (node.kind == CampaignNodeKind::Best)
      for (const std::size_t task : graph.tasks_of(node.of)) views[task].compared = true;
  return views;
}

std::string missing_need(const CampaignGraph& graph, std::size_t task,
                         const std::vector<TaskView>& views) {
  for (const std::size_t need : graph.task(task).needs) {
    const TaskState state = views[need].state;
    if (state == TaskState::Done || tolerates(graph, graph.task(task), state)) continue;
    return fmt::format(
        "needs {}, which {}", graph.task(need).name,
        views[need].broken() ? fmt::format("is {}", to_string(state)) : "has not ended");
  }
  return "";
}

double spent_gpu_hours(const CampaignGraph& graph, const std::vector<TaskView>& views) {
  double sum = 0;
  for (const TaskView& view : views) sum += view.gpu_hours;
  for (const std::string& name : planned_outside(graph))
    sum += load_plan(graph.directory(), name).earlier_gpu_hours;
  return sum;
}

std::vector<std::string> removed_tasks(const CampaignGraph& graph) {
  std::vector<std::string> names = planned_outside(graph);
  std::erase_if(names, [&](const std::string& name) {
    return load_plan(graph.directory(), name).fingerprint.empty();  // its results were put aside
  });
  return names;
}

std::string task_fingerprint(const CampaignGraph& graph, const CampaignTask& task,
                             const std::string& config_text) {
  const CampaignNode& node = graph.node_of(task);
  std::string text;
  const auto add = [&](const std::string& part) {
    text += fmt::format("{}:", part.size());
    text += part;
  };
  for (const std::string& part : task.overrides) add(part);
  for (const std::string& part :
       {config_text, node.like, node.from, std::to_string(task.at), node.of, node.metric,
        std::to_string(int{node.highest}), node.command})
    add(part);
  if (node.kind == CampaignNodeKind::Best)
    for (const std::size_t run : graph.tasks_of(node.of)) add(graph.task(run).name);
  return hex64(hash64(text));
}

std::optional<double> last_metric(const fs::path& run_dir, const std::string& metric) {
  const fs::path file = resolved(run_dir) / "metrics.jsonl";
  std::optional<double> last;
  for (const std::string& line : read_tail(file, kMostMetricBytes).lines)
    if (const auto json = parse_untrusted_json(line))
      if (const auto value = number_at(*json, metric.c_str())) last = value;
  if (last || !stamp_of(file)) return last;
  // A validation or task may be rarer than the records of these bytes.
  visit_records(file, [&](const RecordValues& values) {
    if (const auto value = number_of(values, metric)) last = value;
  });
  return last;
}

CampaignChoice choose_best(const CampaignGraph& graph, const CampaignTask& best,
                           const std::vector<TaskView>& views) {
  const CampaignNode& node = graph.node_of(best);
  std::optional<CampaignChoice> choice;
  for (const std::size_t task : graph.tasks_of(node.of)) {
    if (views[task].state != TaskState::Done) continue;
    const auto value = last_metric(graph.directory_of(graph.task(task)), node.metric);
    if (!value) continue;
    const double better = choice ? choice->value - *value : 0;
    if (!choice || (node.highest ? better < 0 : better > 0)) choice = {task, *value};
  }
  if (!choice)
    user_error("{}: node {}: no run of {} that has ended has written {} to its metrics.jsonl",
               node.where, node.name, node.of, node.metric);
  return *choice;
}

}  // namespace kintsugi
