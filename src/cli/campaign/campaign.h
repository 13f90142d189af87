#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/launch/prepare.h"
#include "launch/campaign/graph.h"
#include "launch/campaign/record.h"
#include "launch/campaign/state.h"

namespace kintsugi {

// A campaign that was read, with the texts of its configurations.
struct Campaign {
  CampaignSnapshot snapshot = {};
  CampaignGraph graph;

  std::filesystem::path directory() const { return graph.directory(); }
  const CampaignNode& node_of(std::size_t task) const { return graph.node_of(graph.task(task)); }
  CampaignNodeKind kind_of(std::size_t task) const { return node_of(task).kind; }
  const std::string& name_of(std::size_t task) const { return graph.task(task).name; }
  std::filesystem::path directory_of(std::size_t task) const {
    return graph.directory_of(graph.task(task));
  }
  std::string fingerprint(std::size_t task) const;
  // The runs that `best` tasks have chosen. Failure for one that has not.
  CampaignGraph::Choice choices() const;
};

// From campaign.yaml, or from the directory of a campaign, whose working directory this process
// then enters. UserError.
Campaign open_campaign(const std::filesystem::path& path);
Campaign started_campaign(const std::filesystem::path& directory);

// Whether a task that has begun was edited since. For a `best`: or has other runs to choose from.
bool is_edited(const Campaign& campaign, std::size_t task, const TaskView& view);
// Checks that what has begun was neither edited nor removed since, and that it is the same place.
// UserError.
void check_unedited(const Campaign& campaign, const std::vector<TaskView>& views);

// Whether a command that has not ended comes before it, which may make its data.
bool waits_for_command(const Campaign& campaign, std::size_t task);

// Chooses where that is possible. A choice has failed if no run has the metric.
void make_choices(const Campaign& campaign, std::vector<TaskView>& views);

// How one run is prepared.
enum class PrepareFor {
  Check,   // what it follows from may be missing: no lock, and no checkpoint to start from
  Submit,  // the same, but holds the lock
  Start,   // holds the lock
  InJob    // by the job itself
};
// A run, checked as kintsugi launch does. UserError that names the task.
PreparedRuns prepare_task(const Campaign& campaign, std::size_t task, PrepareFor purpose,
                          const CampaignGraph::Choice& choice);
// The possible choices: each makes one configuration. At least one.
std::vector<CampaignGraph::Choice> possible_choices(const Campaign& campaign, std::size_t task);

// A task that cannot begin because of a mistake has failed.
void fail_task(const Campaign& campaign, std::size_t task, const std::string& why);

// A command, as a line for bash.
std::string command_of(const Campaign& campaign, std::size_t task);

// The request of a job for this task, without configuration.
LaunchRequest request_of(const Campaign& campaign, std::size_t task);

}  // namespace kintsugi
