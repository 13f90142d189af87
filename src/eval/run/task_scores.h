#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "eval/run/evaluation.h"

namespace kintsugi {

struct ScoreOptions {
  std::int64_t bootstrap_samples = 100'000;  // 0: no bootstrap, and no error of such metrics
};

// A metric of a task or a group.
struct MetricValue {
  std::string name, filter;  // acc, none
  double value = 0;
  std::optional<double> error;  // the standard error; empty: not defined
  bool higher_is_better = true;

  std::string key() const { return name + "," + filter; }  // as in result files
};

// What one filter made of the answers to a task.
struct FilteredAnswers {
  std::string filter = "none";
  std::vector<std::vector<Response>> responses;       // by document; of generated texts
  std::vector<std::vector<EvalDocument>> per_metric;  // [metric of the task][document]
};

struct TaskScores {
  std::vector<MetricValue> metrics;
  std::vector<FilteredAnswers> filters;
};
TaskScores score_task(const PreparedTask& task, const TaskAnswers& answers,
                      const ScoreOptions& options);

struct GroupScores {
  std::vector<MetricValue> metrics;
  std::int64_t documents = 0;  // of all its tasks
};
// `tasks` are the scores of all tasks of the evaluation.
GroupScores score_group(const TaskSet::Group& group, const std::vector<PreparedTask>& prepared,
                        const std::vector<TaskScores>& tasks);

}  // namespace kintsugi
