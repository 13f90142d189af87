#include "cli/campaign/campaign.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/child_output.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/units.h"
#include "core/yaml_document.h"
#include "launch/campaign/definition.h"
#include "launch/job_script.h"
#include "launch/matrix.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

void read_configs(Campaign& campaign) {
  for (const CampaignTask& task : campaign.graph.tasks()) {
    const CampaignNode& node = campaign.graph.node_of(task);
    if (node.kind != CampaignNodeKind::Run) continue;
    const std::string& path = campaign.graph.config_of(task);
    if (campaign.snapshot.configs.contains(path)) continue;
    if (!fs::exists(path))
      user_error("{}: node {}: there is no file {}", node.where, node.name, path);
    const std::string text = read_text_file(path);
    if (!read_matrix(text, path).keys.empty())
      user_error("{}: node {}: {} has a matrix: use grid in the campaign instead", node.where,
                 node.name, path);
    campaign.snapshot.configs[path] = text;
  }
}

Campaign read_campaign(const fs::path& file) {
  CampaignSnapshot snapshot{.source = file.string(),
                            .text = read_text_file(file),
                            .working_directory = fs::current_path().string()};
  CampaignDefinition definition = parse_campaign(snapshot.text, snapshot.source);
  snapshot.max_gpu_hours = definition.max_gpu_hours;
  Campaign campaign{std::move(snapshot), CampaignGraph(std::move(definition))};
  read_configs(campaign);
  return campaign;
}

// With the directories of other nodes in place of {NAME}.
std::vector<std::string> resolved_overrides(const Campaign& campaign, std::size_t number,
                                            const CampaignGraph::Choice& choice) {
  const CampaignTask& task = campaign.graph.task(number);
  std::vector<std::string> overrides = campaign.graph.overrides_of(task, choice);
  for (std::string& text : overrides)
    text = with_references(text, [&](const NodeReference& one) -> std::optional<std::string> {
      if (!is_reference(campaign.graph.definition(), one.name)) return {};
      const auto found = campaign.graph.directories_named(task, one.name, choice);
      if (found.size() != 1)
        user_error("{}: node {}: {{{}}} is {} directories, but one is expected",
                   campaign.node_of(number).where, task.name, one.name, found.size());
      return found.front().string();
    });
  return overrides;
}

std::string start_of(const Campaign& campaign, std::size_t number,
                     const CampaignGraph::Choice& choice) {
  const CampaignTask& task = campaign.graph.task(number);
  const fs::path source = campaign.directory_of(campaign.graph.source_of(task, choice));
  return task.at == 0 ? source.string()
                      : (source / "checkpoints" / fmt::format("step-{:08}", task.at)).string();
}

std::string job_name(const Campaign& campaign, std::size_t task) {
  fs::path directory = campaign.directory().lexically_normal();
  if (!directory.has_filename()) directory = directory.parent_path();
  std::string name = directory.filename().string() + "-" + campaign.name_of(task);
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_' && c != '.')
      c = '-';
  return name;
}

}  // namespace

std::string Campaign::fingerprint(std::size_t task) const {
  const CampaignTask& one = graph.task(task);
  const bool run = kind_of(task) == CampaignNodeKind::Run;
  return task_fingerprint(graph, one, run ? snapshot.configs.at(graph.config_of(one)) : "");
}

CampaignGraph::Choice Campaign::choices() const {
  return [this](std::size_t best) {
    const std::string chosen = load_progress(directory(), name_of(best)).chosen;
    if (chosen.empty()) failure("{} has not chosen a run yet", name_of(best));
    return graph.named(chosen).front();
  };
}

Campaign started_campaign(const fs::path& directory) {
  const fs::path file = snapshot_file(directory);
  if (!fs::exists(file)) user_error("{} has no campaign", directory.string());
  CampaignSnapshot snapshot = snapshot_from_json(read_text_file(file), file.string());
  std::error_code error;
  fs::current_path(snapshot.working_directory, error);
  if (error)
    user_error("the campaign was started in {}, which cannot be entered: {}",
               snapshot.working_directory, error.message());
  CampaignDefinition definition = parse_campaign(snapshot.text, snapshot.source);
  return {std::move(snapshot), CampaignGraph(std::move(definition))};
}

Campaign open_campaign(const fs::path& path) {
  if (fs::is_directory(path)) return started_campaign(path);
  Campaign campaign = read_campaign(path);
  // Of the earlier starts of this campaign.
  const fs::path file = snapshot_file(campaign.directory());
  if (!fs::exists(file)) return campaign;
  const CampaignSnapshot before = snapshot_from_json(read_text_file(file), file.string());
  if (before.working_directory != campaign.snapshot.working_directory)
    user_error("the campaign in {} was started in {}: give the command there",
               campaign.directory().string(), before.working_directory);
  campaign.snapshot.local = before.local;
  campaign.snapshot.given_gpu_hours = before.given_gpu_hours;
  if (before.given_gpu_hours > 0) campaign.snapshot.max_gpu_hours = before.given_gpu_hours;
  return campaign;
}

// What is there before a node begins is not the campaign's: commands would remove it, and runs
// would continue it.
void check_new(const Campaign& campaign, std::size_t task) {
  const fs::path directory = campaign.directory_of(task);
  std::error_code error;
  if (campaign.kind_of(task) == CampaignNodeKind::Best || !fs::exists(directory, error) ||
      (fs::is_directory(directory, error) && fs::is_empty(directory, error)))
    return;
  user_error(
      "{}: node {}: {} exists, and this campaign has not made it: give the node or "
      "campaign.dir another name",
      campaign.node_of(task).where, campaign.node_of(task).name, directory.string());
}

bool is_edited(const Campaign& campaign, std::size_t task, const TaskView& view) {
  const bool best = campaign.kind_of(task) == CampaignNodeKind::Best;
  const std::string& before = best ? view.progress.chosen_by : view.plan.fingerprint;
  return !before.empty() && before != campaign.fingerprint(task);
}

void check_not_removed(const Campaign& campaign) {
  const std::vector<std::string> removed = removed_tasks(campaign.graph);
  if (removed.empty()) return;
  const Campaign before = started_campaign(campaign.directory());
  const std::vector<TaskView> views = look_at_tasks(before.graph);
  for (std::size_t task = 0; task < views.size(); ++task) {
    const std::string& name = before.name_of(task);
    const TaskState state = views[task].state;
    if (std::find(removed.begin(), removed.end(), name) == removed.end() ||
        state == TaskState::Waiting || state == TaskState::Blocked)
      continue;
    user_error(
        "{}: {} is not in it any more, but is {}: put it back, or give --retry {} to put its "
        "results aside",
        campaign.snapshot.source, name, to_string(state), name);
  }
}

void check_unedited(const Campaign& campaign, const std::vector<TaskView>& views) {
  check_not_removed(campaign);
  for (std::size_t task = 0; task < views.size(); ++task) {
    const TaskView& view = views[task];
    const bool best = campaign.kind_of(task) == CampaignNodeKind::Best;
    if (!best && !has_plan(campaign.directory(), campaign.name_of(task))) check_new(campaign, task);
    if (view.state == TaskState::Waiting || view.state == TaskState::Blocked ||
        !is_edited(campaign, task, view))
      continue;
    user_error(
        "{}: node {} has changed{}, but {} is {}: undo the change, or give --retry {} to do it "
        "again",
        campaign.node_of(task).where, campaign.node_of(task).name,
        best ? fmt::format(", or the runs of {}", campaign.node_of(task).of) : "",
        campaign.name_of(task), to_string(view.state), campaign.name_of(task));
  }
}

bool waits_for_command(const Campaign& campaign, std::size_t task) {
  std::vector<std::size_t> commands;
  for (std::size_t one = 0; one < campaign.graph.tasks().size(); ++one)
    if (campaign.kind_of(one) == CampaignNodeKind::Command &&
        look_at_task(campaign.graph, one).state != TaskState::Done)
      commands.push_back(one);
  const std::vector<std::size_t> waiting = campaign.graph.followers(commands);
  return std::find(waiting.begin(), waiting.end(), task) != waiting.end();
}

void fail_task(const Campaign& campaign, std::size_t task, const std::string& why) {
  TaskProgress progress = load_progress(campaign.directory(), campaign.name_of(task));
  progress.failed = true;
  progress.refused = why;
  save_progress(campaign.directory(), campaign.name_of(task), progress);
}

void make_choices(const Campaign& campaign, std::vector<TaskView>& views) {
  for (std::size_t task = 0; task < views.size(); ++task) {
    if (campaign.kind_of(task) != CampaignNodeKind::Best || views[task].state == TaskState::Done ||
        views[task].state == TaskState::Failed ||
        !missing_need(campaign.graph, task, views).empty())
      continue;
    try {
      const CampaignChoice choice = choose_best(campaign.graph, campaign.graph.task(task), views);
      TaskProgress& progress = views[task].progress;
      progress.chosen = campaign.name_of(choice.task);
      progress.chosen_by = campaign.fingerprint(task);
      progress.value = choice.value;
      save_progress(campaign.directory(), campaign.name_of(task), progress);
      views[task].state = TaskState::Done;
    } catch (const UserError& error) {
      log_warning("{}", error.what());
      fail_task(campaign, task, error.what());
      views[task].state = TaskState::Failed;
    }
  }
}

std::vector<CampaignGraph::Choice> possible_choices(const Campaign& campaign, std::size_t task) {
  const std::vector<std::size_t> open = campaign.graph.choices_of(campaign.graph.task(task));
  const auto first_of = [&campaign](std::size_t best) {
    const std::string chosen = load_progress(campaign.directory(), campaign.name_of(best)).chosen;
    std::vector<std::size_t> runs = campaign.graph.tasks_of(campaign.node_of(best).of);
    for (const std::size_t run : runs)
      if (campaign.name_of(run) == chosen) return std::vector{run};
    return runs;
  };
  std::vector<CampaignGraph::Choice> choices;
  // One after the other: with several choices, not all combinations.
  for (const std::size_t varied : open)
    for (const std::size_t run : first_of(varied))
      choices.emplace_back(
          [=](std::size_t best) { return best == varied ? run : first_of(best).front(); });
  if (choices.empty())
    choices.emplace_back([=](std::size_t best) { return first_of(best).front(); });
  return choices;
}

LaunchRequest request_of(const Campaign& campaign, std::size_t task) {
  const CampaignLaunch& launch = campaign.node_of(task).launch;
  LaunchRequest request{.machine = launch.machine, .local = campaign.snapshot.local};
  request.ranks = launch.ranks;
  request.options = {.nodes = launch.nodes,
                     .spare_nodes = launch.spare_nodes,
                     .min_nodes = launch.min_nodes,
                     .ranks_per_node = launch.ranks_per_node,
                     .time_s = launch.time_s,
                     .account = launch.account,
                     .partition = launch.partition,
                     .qos = launch.qos,
                     .container = launch.container,
                     .name = job_name(campaign, task),
                     .requeue = launch.requeue,
                     .exclude = launch.exclude};
  if (request.options.account.empty())
    if (const char* account = std::getenv("SBATCH_ACCOUNT")) request.options.account = account;
  if (!launch.container.empty())
    request.options.container = fs::absolute(launch.container).string();
  return request;
}

PreparedRuns prepare_task(const Campaign& campaign, std::size_t task, PrepareFor purpose,
                          const CampaignGraph::Choice& choice) {
  const CampaignTask& one = campaign.graph.task(task);
  LaunchRequest request = request_of(campaign, task);
  request.config = campaign.graph.config_of(one);
  request.text = campaign.snapshot.configs.at(request.config);
  request.in_job = purpose == PrepareFor::Check || purpose == PrepareFor::InJob;
  const bool early = purpose == PrepareFor::Check || purpose == PrepareFor::Submit;
  request.data_later = early && waits_for_command(campaign, task);
  request.options.first = {own_program().string(), "campaign",
                           fs::absolute(campaign.directory()).lexically_normal().string(),
                           "--enter", one.name};
  try {
    request.overrides = resolved_overrides(campaign, task, choice);
    request.overrides.push_back("run.dir=" + yaml_quoted(campaign.directory_of(task).string()));
    if (!campaign.node_of(task).from.empty() && !early)
      request.overrides.push_back("run.from=" + yaml_quoted(start_of(campaign, task, choice)));
    return prepare_runs(request);
  } catch (const UserError& error) {
    user_error("node {}: {}", one.name, error.what());
  }
}

std::string command_of(const Campaign& campaign, std::size_t task) {
  const std::string& command = campaign.node_of(task).command;
  return with_references(command, [&](const NodeReference& one) -> std::optional<std::string> {
    if (!is_reference(campaign.graph.definition(), one.name)) return {};
    std::string words;
    for (const fs::path& directory :
         campaign.graph.directories_named(campaign.graph.task(task), one.name, campaign.choices()))
      words += (words.empty() ? "" : " ") + quoted_at(command, one.begin, directory.string());
    return words;
  });
}

}  // namespace kintsugi
