#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/result_files.h"

namespace kintsugi {

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
