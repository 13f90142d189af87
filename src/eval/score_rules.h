#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// The results of one task in a result file of lm-evaluation-harness (keys "acc" before v0.4,
// "acc,none" since) or of a code harness, which has the tasks at the top level.
struct TaskResult {
  std::string file, task;
  std::map<std::string, double> metrics;  // by the key in the file
  std::optional<std::int64_t> shots;      // examples in the prompt, if the file says it

  // By a metric's name (acc), or a name with a filter (exact_match,strict-match). A name alone
  // prefers the filter "none", or takes the only filter; UserError if there are several.
  std::optional<double> find(const std::string& metric) const;
};

std::vector<TaskResult> parse_results(const std::string& json, const std::string& source);
// Of files, and of all *.json in directories: in a directory itself, else in its only subdirectory
// with such files (the model's, as `kintsugi eval --output` writes them).
std::vector<TaskResult> read_results(const std::vector<std::string>& paths);

// How published scores of a model are computed from the results of many tasks. A score is the mean
// of its components, and a component is the mean of a metric over its tasks, in percent.
struct ScoreRule {
  struct Source {
    std::string task, metric;
  };
  struct Component {
    std::string name;
    std::optional<std::int64_t> shots;  // required, where the file says it
    std::vector<std::vector<Source>>
        tasks;  // of each task its names: the first that was run counts
  };
  struct Score {
    std::string name;
    std::vector<Component> components;
  };
  std::string name;
  std::vector<Score> scores;
};
const ScoreRule& score_rule(std::string_view name);  // poro; UserError for another name

struct RuleScore {
  struct Part {
    std::string name;
    double value;  // percent
  };
  std::string name;
  double value;  // percent
  std::vector<Part> components;
};
// The scores named in `only`, or all if it is empty. UserError if a task is missing, was run with
// another number of examples, or has different results in two files.
std::vector<RuleScore> apply_rule(const ScoreRule& rule, std::span<const TaskResult> results,
                                  std::span<const std::string> only = {});

}  // namespace kintsugi
