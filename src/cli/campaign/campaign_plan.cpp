#include "cli/campaign/campaign_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "core/error.h"
#include "core/log.h"
#include "core/table.h"
#include "core/units.h"
#include "model/objective_scalars.h"
#include "plan/machines/machine.h"
#include "plan/search/interval.h"
#include "train/step_metrics.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr double kSecondsPerHour = 3600;

void note_config(const RunConfig& config, PlannedTask& planned) {
  planned.checked = true;
  planned.validates = config.train.eval_every > 0;
  planned.experts = config.model.experts.has_value();
  if (!config.stages.empty()) return;
  planned.steps = config.total_steps();
  planned.checkpoint_every = config.train.checkpoint_every.value_or(0);
  planned.keep_checkpoints = config.train.keep_checkpoints;
  planned.keep_every = config.train.keep_every;
}

// With the choice that needs most.
void plan_run(const Campaign& campaign, std::size_t task, PlannedTask& planned) {
  const std::string& machine = campaign.node_of(task).launch.machine;
  bool any = false;
  for (const CampaignGraph::Choice& choice : possible_choices(campaign, task)) {
    const PreparedRuns runs = prepare_task(campaign, task, PrepareFor::Check, choice);
    const PreparedRun& run = runs.list.front();
    planned.gpus = (run.job.nodes + run.job.spare_nodes) * run.job.ranks_per_node;
    const TaskForecast forecast = forecast_run(run.config, machine, run.job.ranks());
    if (any && forecast.gpu_hours() <= planned.forecast.gpu_hours()) continue;
    planned.forecast = forecast;
    note_config(run.config, planned);
    any = true;
  }
}

// Data that a command makes may be a tokenizer, without which nothing can be said.
void plan_run_or_note(const Campaign& campaign, std::size_t task, PlannedTask& planned) {
  try {
    plan_run(campaign, task, planned);
  } catch (const UserError& error) {
    if (!campaign.snapshot.local || !waits_for_command(campaign, task)) throw;
    log_note("{}; checked again when it starts", error.what());
    planned.forecast.unknown = "it cannot be read yet";
  }
}

void plan_command(const Campaign& campaign, std::size_t task, PlannedTask& planned) {
  const CampaignLaunch& launch = campaign.node_of(task).launch;
  planned.forecast.unknown = "a command";
  planned.gpus = campaign.snapshot.local ? launch.ranks : 1;
  if (campaign.snapshot.local) return;
  if (launch.machine.empty()) user_error("give launch.machine, or --local");
  const Machine machine = load_machine(launch.machine);
  const std::int64_t ranks =
      launch.ranks_per_node > 0 ? launch.ranks_per_node : std::int64_t{machine.node.gpus};
  planned.gpus = launch.nodes * ranks;
  planned.forecast.limit_gpu_hours =
      static_cast<double>(planned.gpus) * launch.time_s / kSecondsPerHour;
}

// The names that metrics.jsonl may have; layers of experts declare more.
std::vector<std::string> metric_names() {
  std::vector<std::string> names;
  for (const StepMetric& metric : step_metrics()) names.push_back(metric.json);
  const StepScalars scalars = objective_scalars(1, true);
  const std::vector<double> sums(scalars.sums(), 0.0);
  for (const ScalarValue& one : scalars.values(sums, 1))
    for (const std::string& name : {one.of->names.json, one.of->valid.json}) names.push_back(name);
  std::erase(names, "");
  return names;
}

// A metric that no run will write.
void check_metric(const Campaign& campaign, std::size_t number, const CampaignPlan& plan) {
  const CampaignNode& node = campaign.node_of(number);
  const std::vector<std::string> names = metric_names();
  for (const std::size_t task : campaign.graph.tasks_of(node.of)) {
    const PlannedTask& run = plan.tasks[task];
    if (!run.checked) continue;
    const std::string begin = fmt::format("{}: node {}: {}", node.where, node.name, node.metric);
    const bool known = std::find(names.begin(), names.end(), node.metric) != names.end();
    const std::string near = nearest_word(node.metric, names);
    if (!known && !run.experts)
      user_error("{} is no metric of a run{}", begin,
                 near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near));
    if (known && node.metric.starts_with("valid_") && !run.validates)
      user_error("{}: {} does not validate (train.eval_every: 0)", begin, campaign.name_of(task));
  }
}

// The steps of a branch count from those of its source.
double left_of(const TaskView& view, std::int64_t steps) {
  if (!view.run || steps <= 0) return 1;
  const auto left = static_cast<double>(view.run->total_steps - view.run->step);
  return std::clamp(left / static_cast<double>(steps), 0.0, 1.0);
}

// The step of its first and of its last checkpoint; -1: unknown.
struct StepRange {
  std::int64_t begin = 0, end = -1;
};
StepRange steps_of(const Campaign& campaign, std::size_t number, const CampaignPlan& plan) {
  const CampaignTask& task = campaign.graph.task(number);
  StepRange range;
  if (task.at > 0) {
    range.begin = task.at;
  } else if (!campaign.graph.node_of(task).from.empty()) {
    const auto choice = possible_choices(campaign, number).front();
    range.begin = steps_of(campaign, campaign.graph.source_of(task, choice), plan).end;
  }
  if (range.begin >= 0 && plan.tasks[number].steps > 0)
    range.end = range.begin + plan.tasks[number].steps;
  return range;
}

// The run that a branch continues must keep the checkpoint of its step.
void check_branch(const Campaign& campaign, std::size_t number, const CampaignPlan& plan) {
  const CampaignTask& task = campaign.graph.task(number);
  const auto choice = possible_choices(campaign, number).front();
  const std::size_t source = campaign.graph.source_of(task, choice);
  const PlannedTask& run = plan.tasks[source];
  const std::string begin = fmt::format("{}: node {}: at {}", campaign.node_of(number).where,
                                        campaign.node_of(number).name, task.at);
  if (!run.open) {
    if (!fs::exists(campaign.directory_of(source) / "checkpoints" /
                    fmt::format("step-{:08}", task.at)))
      user_error("{}: {} has no checkpoint of this step", begin, campaign.name_of(source));
    return;
  }
  const StepRange range = steps_of(campaign, source, plan);
  if (range.end < 0) return;
  if (task.at <= range.begin || task.at > range.end)
    user_error("{}: {} has the steps {} to {}", begin, campaign.name_of(source), range.begin + 1,
               range.end);
  const auto is_multiple = [&](std::int64_t every) { return every > 0 && task.at % every == 0; };
  if (task.at != range.end && !is_multiple(run.keep_every) &&
      !(is_multiple(run.checkpoint_every) && run.keep_checkpoints == 0))
    user_error("{}: {} will not keep a checkpoint of this step: set train.keep_every there", begin,
               campaign.name_of(source));
}

void add_sums(const Campaign& campaign, CampaignPlan& plan) {
  std::vector<double> until(plan.tasks.size(), 0);
  bool all_kwh = true;
  for (std::size_t task = 0; task < plan.tasks.size(); ++task) {
    const PlannedTask& planned = plan.tasks[task];
    double begin = 0;
    for (const std::size_t need : campaign.graph.task(task).needs)
      begin = std::max(begin, until[need]);
    const TaskForecast& forecast = planned.forecast;
    until[task] = begin;
    if (!planned.open) continue;
    plan.gpu_hours += forecast.gpu_hours();
    plan.most_gpu_hours += forecast.most_gpu_hours();
    if (!forecast.run) continue;
    const double days = forecast.left * forecast.run->days;
    until[task] += days;
    plan.days = campaign.snapshot.local ? plan.days + days : std::max(plan.days, until[task]);
    const double kwh = forecast.left * 1000 * highest_mwh(forecast.run->energy);
    all_kwh = all_kwh && kwh > 0;
    plan.kwh += kwh;
    plan.kwh_of = forecast.run->energy.facility_mwh ? "facility"
                  : forecast.run->energy.node_mwh   ? "nodes"
                                                    : "GPUs";
  }
  if (!all_kwh) plan.kwh_of.clear();
}

std::string what_it_does(const Campaign& campaign, const CampaignNode& node, std::size_t count) {
  switch (node.kind) {
    case CampaignNodeKind::Run:
      return count == 1 ? "run" : format_number(static_cast<std::int64_t>(count), "run");
    case CampaignNodeKind::Best:
      return fmt::format("{} {} of {}", node.highest ? "highest" : "lowest", node.metric, node.of);
    case CampaignNodeKind::Command:
      break;
  }
  (void)campaign;
  std::string words = node.command.substr(0, node.command.find('\n'));
  if (words.starts_with("\"$kintsugi\" ")) words = words.substr(12);
  constexpr std::size_t kShown = 30;
  return printable(words.size() > kShown ? words.substr(0, kShown - 1) + "…" : words);
}

struct NodeSums {
  std::int64_t steps = 0;
  std::optional<double> gpu_hours = {}, kwh = {}, days = {};
  double within = 1;
};
NodeSums sums_of(const CampaignPlan& plan, const std::vector<std::size_t>& tasks) {
  NodeSums sums;
  for (const std::size_t task : tasks) {
    const TaskForecast& forecast = plan.tasks[task].forecast;
    sums.steps += plan.tasks[task].steps;
    if (!plan.tasks[task].open || !forecast.run) continue;
    sums.gpu_hours = sums.gpu_hours.value_or(0) + forecast.gpu_hours();
    sums.kwh = sums.kwh.value_or(0) + forecast.left * 1000 * highest_mwh(forecast.run->energy);
    sums.days = std::max(sums.days.value_or(0), forecast.left * forecast.run->days);
    sums.within = std::max(sums.within, forecast.run->within);
  }
  return sums;
}

// In the order in which they begin.
std::vector<std::string> node_order(const Campaign& campaign) {
  std::vector<std::string> names;
  for (const CampaignTask& task : campaign.graph.tasks())
    if (const std::string& name = campaign.graph.node_of(task).name;
        std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  return names;
}

std::string budget_text(const Campaign& campaign, double spent) {
  const double limit = campaign.snapshot.max_gpu_hours;
  return fmt::format("{:.3g} GPU-hours were spent{}", spent,
                     limit > 0 ? fmt::format(", of at most {:.6g}", limit) : "");
}

}  // namespace

CampaignPlan plan_campaign(const Campaign& campaign, const std::vector<TaskView>& views) {
  CampaignPlan plan;
  plan.tasks.resize(views.size());
  for (std::size_t task = 0; task < views.size(); ++task) {
    PlannedTask& planned = plan.tasks[task];
    planned.open = !views[task].ended() && !views[task].broken();
    if (!planned.open) continue;
    if (campaign.kind_of(task) == CampaignNodeKind::Run)
      plan_run_or_note(campaign, task, planned);
    else if (campaign.kind_of(task) == CampaignNodeKind::Command)
      plan_command(campaign, task, planned);
    planned.forecast.left = left_of(views[task], planned.steps);
  }
  for (std::size_t task = 0; task < views.size(); ++task) {
    if (!plan.tasks[task].open) continue;
    if (campaign.graph.task(task).at > 0) check_branch(campaign, task, plan);
    if (campaign.kind_of(task) == CampaignNodeKind::Best) check_metric(campaign, task, plan);
  }
  add_sums(campaign, plan);
  return plan;
}

std::string plan_text(const Campaign& campaign, const CampaignPlan& plan,
                      const std::vector<TaskView>& views) {
  Table table({Column::text("node"), Column::text("what"), Column::text("after"),
               Column::number("steps"), Column::number("GPU-hours", "", "{:.3g}"),
               Column::text("±"), Column::number("kWh", "", "{:.3g}"),
               Column::number("days", "", "{:.3g}")});
  std::vector<std::string> unknown;
  for (const std::string& name : node_order(campaign)) {
    const CampaignNode& node = campaign.graph.node(name);
    const auto tasks = campaign.graph.tasks_of(name);
    const NodeSums sums = sums_of(plan, tasks);
    const bool open = std::any_of(tasks.begin(), tasks.end(),
                                  [&](std::size_t task) { return plan.tasks[task].open; });
    if (!open) continue;
    if (!sums.gpu_hours && node.kind != CampaignNodeKind::Best) unknown.push_back(name);
    std::vector<std::string> after;
    for (const std::size_t need : campaign.graph.task(tasks.front()).needs)
      if (const std::string& one = campaign.node_of(need).name;
          std::find(after.begin(), after.end(), one) == after.end())
        after.push_back(one);
    table.add({name, what_it_does(campaign, node, tasks.size()),
               fmt::format("{}", fmt::join(after, ", ")),
               sums.steps > 0 ? Cell(sums.steps) : Cell::missing(), sums.gpu_hours,
               sums.gpu_hours ? StepInterval{.within = sums.within}.short_text() : "", sums.kwh,
               sums.days});
  }
  std::string text = table.empty() ? "Nothing is missing.\n" : table.text();
  if (plan.gpu_hours > 0)
    text += fmt::format(
        "Planned: {:.3g} GPU-hours (at most {:.3g}), {}{:.3g} days.\n", plan.gpu_hours,
        plan.most_gpu_hours,
        plan.kwh_of.empty() ? "" : fmt::format("{:.3g} kWh of the {}, ", plan.kwh, plan.kwh_of),
        plan.days);
  if (!unknown.empty()) text += fmt::format("Not predicted: {}.\n", fmt::join(unknown, ", "));
  return text + budget_text(campaign, spent_gpu_hours(campaign.graph, views)) + ".\n";
}

std::string over_budget(const Campaign& campaign, std::size_t task, double most_gpu_hours,
                        const std::vector<TaskView>& views) {
  const double limit = campaign.snapshot.max_gpu_hours;
  if (limit <= 0) return "";
  double needed = spent_gpu_hours(campaign.graph, views);
  for (std::size_t other = 0; other < views.size(); ++other)  // what others still need
    if (other != task && views[other].state == TaskState::Running)
      needed += std::max(0.0, views[other].plan.gpu_hours - views[other].gpu_hours);
  if (needed < limit && needed + most_gpu_hours <= limit) return "";
  return fmt::format(
      "the limit of {:.6g} GPU-hours: {:.3g} were spent or are in use, and it needs up to {:.3g}",
      limit, needed, most_gpu_hours);
}

void check_budget(const Campaign& campaign, const CampaignPlan& plan,
                  const std::vector<TaskView>& views) {
  const double limit = campaign.snapshot.max_gpu_hours,
               spent = spent_gpu_hours(campaign.graph, views);
  if (limit > 0 && spent + plan.most_gpu_hours > limit)
    user_error(
        "the campaign needs up to {:.3g} GPU-hours, and {:.3g} were spent, but the limit is "
        "{:.6g}: nothing was started; raise --max-gpu-hours, or make it smaller",
        plan.most_gpu_hours, spent, limit);
}

void confirm_plan() {
  if (isatty(STDIN_FILENO) == 0)
    user_error("nothing was started: give --yes to start it as it was planned");
  fmt::print("Start it? [y/N] ");
  std::fflush(stdout);
  std::string answer;
  std::getline(std::cin, answer);
  if (answer != "y" && answer != "yes") user_error("nothing was started");
}

}  // namespace kintsugi
