#include "cli/campaign/campaign_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/file_lock.h"
#include "core/log.h"
#include "core/table.h"
#include "core/units.h"
#include "energy/carbon.h"
#include "launch/slurm.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using TaskViews = std::vector<TaskView>;

std::string run_details(const TaskView& view) {
  const RunStatus& run = *view.run;
  std::string text = fmt::format("step {} of {}", run.step, run.total_steps);
  if (run.loss) text += fmt::format(", loss {:.4f}", *run.loss);
  if (run.valid_loss) text += fmt::format(", validation {:.4f}", *run.valid_loss);
  if (view.state == TaskState::Running && run.eta_s) text += ", ETA " + format_duration(*run.eta_s);
  if (view.state == TaskState::Failed || view.state == TaskState::Diverged)
    text += fmt::format(", {}", printable(run.reason));
  return text;
}

std::string details_of(const Campaign& campaign, std::size_t task, const TaskViews& views) {
  const TaskView& view = views[task];
  std::string text;
  if (!view.progress.chosen.empty())
    text = fmt::format("{} with {} {:.4f}", printable(view.progress.chosen),
                       campaign.node_of(task).metric, view.progress.value);
  else if (view.run)
    text = run_details(view);
  else if (view.exit_code && *view.exit_code != 0)
    text = fmt::format("exit code {}", *view.exit_code);
  if (view.active() && !view.plan.job_ids.empty())
    text += fmt::format("{}job {}", text.empty() ? "" : ", ", view.plan.job_ids.back());
  const bool idle = !view.active() && !view.ended();
  if (idle && !view.progress.refused.empty())
    text += fmt::format("{}{}", text.empty() ? "" : "; ", printable(view.progress.refused));
  else if (view.state == TaskState::Blocked)
    text = missing_need(campaign.graph, task, views);
  return text;
}

// How deep a node is in the tree: below the last of those that it follows.
std::size_t depth_of(const Campaign& campaign, std::size_t task,
                     const std::vector<std::size_t>& depths) {
  std::size_t depth = 0;
  for (const std::size_t need : campaign.graph.task(task).needs)
    depth = std::max(depth, depths[need] + 1);
  return depth;
}

std::string states_of(const std::vector<std::size_t>& tasks, const TaskViews& views) {
  const auto done = std::count_if(tasks.begin(), tasks.end(),
                                  [&](std::size_t task) { return views[task].ended(); });
  return fmt::format("{} of {} done", done, tasks.size());
}

void add_rows(const Campaign& campaign, const TaskViews& views, Table& table) {
  std::vector<std::size_t> depths(views.size(), 0);
  std::string group;
  for (std::size_t task = 0; task < views.size(); ++task) {
    depths[task] = depth_of(campaign, task, depths);
    std::string name = campaign.name_of(task);
    std::string indent(2 * depths[task], ' ');
    const std::string& node = campaign.node_of(task).name;
    if (name != node) {
      if (group != node)
        table.add({indent + node, states_of(campaign.graph.tasks_of(node), views), ""});
      group = node;
      indent += "  ";
      name = name.substr(node.size() + 1);
    }
    table.add({indent + name, std::string(to_string(views[task].state)),
               details_of(campaign, task, views)});
  }
}

std::string sums_text(const Campaign& campaign, const TaskViews& views) {
  const double spent = spent_gpu_hours(campaign.graph, views),
               limit = campaign.snapshot.max_gpu_hours;
  std::string text = fmt::format("spent {:.3g} GPU-hours", spent);
  if (limit > 0)
    text += fmt::format(" of {:.6g}, {:.3g} left", limit, std::max(0.0, limit - spent));
  double joules = 0, planned = 0;
  for (const TaskView& view : views) {
    joules += view.joules.value_or(0);
    if (!view.ended()) planned += std::max(0.0, view.plan.gpu_hours - view.gpu_hours);
  }
  if (joules > 0) text += fmt::format(", {}", energy_text(joules));
  if (planned > 0) text += fmt::format("; what was started needs up to {:.3g} more", planned);
  return text + "\n";
}

bool is_locked(const Campaign& campaign) {
  const fs::path file = campaign_lock(campaign.directory());
  std::string holder;
  return fs::exists(file) && FileLock::try_take(file, holder) == nullptr;
}

// Keeps the result of a task under another name.
void set_aside(const Campaign& campaign, std::size_t task, const TaskView& view) {
  const fs::path directory = campaign.directory_of(task);
  const std::string& name = campaign.name_of(task);
  if (fs::exists(directory)) {
    fs::path old;
    for (int i = 1; fs::exists(old = directory.string() + fmt::format(".old-{}", i)); ++i) {
    }
    fs::rename(directory, old);
    log_note("{} is now {}", directory.string(), old.string());
  }
  forget_task(campaign.directory(), name);
  if (view.gpu_hours > 0)
    save_plan(campaign.directory(), name, {.earlier_gpu_hours = view.gpu_hours});
}

void continue_task(const Campaign& campaign, std::size_t task, const TaskView& view) {
  const fs::path directory = campaign.directory_of(task);
  TaskProgress progress = view.progress;
  if (campaign.kind_of(task) == CampaignNodeKind::Command) {
    progress.spent_s = command_seconds(directory, progress, false);
    progress.began_s = 0;
  }
  progress.failed = false;
  progress.refused.clear();
  save_progress(campaign.directory(), campaign.name_of(task), progress);
  fs::remove(directory / "launch/exit_code");
}

void check_idle(const Campaign& campaign, std::size_t task, const TaskView& view) {
  if (view.active())
    user_error("{} is {}: wait for it, or give --cancel first", campaign.name_of(task),
               to_string(view.state));
}

// Those of NODE or NODE/JOB that were removed from the file.
void set_removed_aside(const Campaign& campaign, const std::string& name) {
  std::vector<std::string> removed = removed_tasks(campaign.graph);
  std::erase_if(
      removed, [&](const std::string& one) { return one != name && !one.starts_with(name + "/"); });
  if (removed.empty()) return;
  const Campaign before = started_campaign(campaign.directory());
  const TaskViews views = look_at_tasks(before.graph);
  for (const std::string& one : removed)
    check_idle(before, before.graph.named(one).front(), views[before.graph.named(one).front()]);
  for (const std::string& one : removed)
    set_aside(before, before.graph.named(one).front(), views[before.graph.named(one).front()]);
}

}  // namespace

std::string status_text(const Campaign& campaign, const TaskViews& views) {
  const auto done =
      std::count_if(views.begin(), views.end(), [](const TaskView& view) { return view.ended(); });
  std::string text =
      fmt::format("campaign {}: {} of {} done\n", campaign.directory().string(), done,
                  format_number(static_cast<std::int64_t>(views.size()), "job"));
  Table table({Column::text(""), Column::text(""), Column::text("")});
  add_rows(campaign, views, table);
  return text + table.text() + sums_text(campaign, views);
}

void cancel_campaign(const Campaign& campaign, const TaskViews& views) {
  bool any = false;
  std::vector<std::string> runs, commands, problems;
  // On a full disk, what needs no file is cancelled nevertheless.
  const auto write = [&](const fs::path& file) {
    try {
      write_file_atomically(file, "kintsugi campaign --cancel\n");
      return true;
    } catch (const std::exception& error) {
      problems.emplace_back(error.what());
      return false;
    }
  };
  for (std::size_t task = 0; task < views.size(); ++task) {
    const TaskView& view = views[task];
    if (!view.active()) continue;
    any = true;
    const bool run = campaign.kind_of(task) == CampaignNodeKind::Run;
    if (!view.queue.empty())
      for (const std::string& id : view.plan.job_ids) (run ? runs : commands).push_back(id);
    // A job that has not started must not find it later.
    if (run && view.state == TaskState::Running && !write(campaign.directory_of(task) / "stop") &&
        view.queue.empty())
      continue;
    fmt::print("{}: {}\n", campaign.name_of(task),
               view.state == TaskState::Queued ? "removed from the queue"
               : run                           ? "asked to save and stop"
               : view.queue.empty()            ? "the command ends first"
                                               : "cancelled");
  }
  stop_jobs(runs);
  kill_jobs(commands);
  if (is_locked(campaign)) {
    if (write(campaign_stop_file(campaign.directory()))) fmt::print("nothing more is started\n");
    any = true;
  }
  if (!problems.empty()) failure("not everything was cancelled: {}", problems.front());
  if (!any)
    user_error("nothing of {} runs: there is nothing to cancel", campaign.directory().string());
}

std::vector<std::size_t> tasks_of_retry(const Campaign& campaign,
                                        const std::vector<std::string>& names) {
  std::vector<std::size_t> tasks;
  for (const std::string& name : names) {
    const std::vector<std::string> removed = removed_tasks(campaign.graph);
    const bool gone = std::any_of(removed.begin(), removed.end(), [&](const std::string& one) {
      return one == name || one.starts_with(name + "/");
    });
    if (gone && campaign.graph.tasks_of(name).empty()) continue;
    for (const std::size_t task : campaign.graph.named(name)) tasks.push_back(task);
  }
  return tasks;
}

void retry_tasks(const Campaign& campaign, const std::vector<std::string>& names,
                 const TaskViews& views) {
  std::set<std::size_t> again, aside;
  for (const std::size_t task : tasks_of_retry(campaign, names)) {
    const TaskState state = views[task].state;
    const bool unfinished = state == TaskState::Failed || state == TaskState::Stopped;
    (unfinished && !is_edited(campaign, task, views[task]) ? again : aside).insert(task);
  }
  for (const auto& tasks : {again, aside})
    for (const std::size_t task : tasks) check_idle(campaign, task, views[task]);
  const std::vector<std::size_t> all(aside.begin(), aside.end());
  for (const std::size_t task : campaign.graph.followers(all)) {
    check_idle(campaign, task, views[task]);
    if (views[task].state != TaskState::Waiting && views[task].state != TaskState::Blocked)
      aside.insert(task);
  }
  for (const std::string& name : names) set_removed_aside(campaign, name);
  for (const std::size_t task : again) continue_task(campaign, task, views[task]);
  for (const std::size_t task : aside) set_aside(campaign, task, views[task]);
}

}  // namespace kintsugi
