#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "launch/campaign/definition.h"

namespace kintsugi {

// Whether {NAME} stands for directories: of a node (of one of its jobs: NODE/JOB), or self.
bool is_reference(const CampaignDefinition& definition, const std::string& name);
// {NAME} that may be a typo in the name of a node: "{lnog} (did you mean 'long'?)", with its place.
std::vector<std::string> likely_typos(const CampaignDefinition& definition);

// One job of a campaign: a run, a command or a choice.
struct CampaignTask {
  std::string name = {};                    // "long", "sweep/lr-1e-3", "cool/step-800"
  std::size_t node = 0;                     // in the definition
  std::vector<std::string> overrides = {};  // of the node and of the point of a sweep
  std::int64_t at = 0;                      // continues from this step; 0: from the last
  std::vector<std::size_t> needs = {};      // tasks that end first
};

// The campaign as a graph of tasks, each behind those that it needs.
class CampaignGraph {
 public:
  // UserError for unknown nodes, cycles, and what cannot follow from each other.
  explicit CampaignGraph(CampaignDefinition definition);

  const CampaignDefinition& definition() const { return definition_; }
  const std::vector<CampaignTask>& tasks() const { return tasks_; }
  const CampaignTask& task(std::size_t number) const { return tasks_.at(number); }
  const CampaignNode& node_of(const CampaignTask& task) const {
    return definition_.nodes.at(task.node);
  }
  const CampaignNode& node(const std::string& name) const;
  std::vector<std::size_t> tasks_of(const std::string& node) const;  // by the node's name
  // A node or one of its tasks, by name. UserError otherwise.
  std::vector<std::size_t> named(const std::string& name) const;
  // Those that need one of these, and those that need them, and so on.
  std::vector<std::size_t> followers(const std::vector<std::size_t>& tasks) const;

  std::filesystem::path directory() const { return definition_.dir; }
  std::filesystem::path directory_of(const CampaignTask& task) const {
    return directory() / task.name;
  }

  // The configuration file of a run, also where it is that of another node.
  const std::string& config_of(const CampaignTask& task) const;

  // The run that a `best` has chosen.
  using Choice = std::function<std::size_t(std::size_t best_task)>;
  // All that is changed in the configuration of a run, without run.dir and run.from.
  std::vector<std::string> overrides_of(const CampaignTask& task, const Choice& choice) const;
  // The run whose checkpoint it continues; the task must have `from`.
  std::size_t source_of(const CampaignTask& task, const Choice& choice) const;
  // The directories that {NAME} stands for in a task.
  std::vector<std::filesystem::path> directories_named(const CampaignTask& task,
                                                       const std::string& name,
                                                       const Choice& choice) const;
  // The choices that its overrides and its source depend on: `best` tasks.
  std::vector<std::size_t> choices_of(const CampaignTask& task) const;

 private:
  std::size_t single(const CampaignNode& user, const char* key, const std::string& name) const;
  std::size_t chosen(std::size_t task, const Choice& choice) const;
  void check_names() const;
  void check_kinds() const;
  void check_references(const CampaignNode& node) const;
  std::vector<std::size_t> order() const;  // of the nodes
  void add_tasks(std::size_t node);

  CampaignDefinition definition_;
  std::vector<CampaignTask> tasks_;
};

}  // namespace kintsugi
