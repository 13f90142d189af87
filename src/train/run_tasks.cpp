#include "train/run_tasks.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/units.h"
#include "eval/run/evaluation.h"
#include "eval/run/task_scores.h"

namespace kintsugi {
namespace {

// Of metrics without a formula for their standard error. Rank 0 computes it while the others wait;
// this number estimates the error to about 2 %.
constexpr std::int64_t kBootstrapSamples = 1000;

TaskSet tasks_of(const TrainConfig& train) {
  TaskSet tasks = find_tasks(train.eval_tasks, {});
  for (const EvalTask& task : tasks.tasks)
    if (task.output_type == OutputType::GenerateUntil)
      user_error(
          "the answers of task {} are generated texts, which training does not "
          "compute: remove it here, and evaluate checkpoints with `kintsugi eval`",
          task.name);
  return tasks;
}

EvaluationOptions options_of(const TrainConfig& train) {
  EvaluationOptions options;
  if (train.eval_tasks_limit > 0) options.limit = static_cast<double>(train.eval_tasks_limit);
  return options;
}

// Computes nothing. Encoding all requests checks that they can be scored.
class CheckedRequests : public ScoringModel {
 public:
  CheckedRequests(TaskTokenizer& tokenizer, std::int64_t length)
      : tokenizer_(tokenizer), length_(length) {}

  TokenIds encode(const std::string& text) override { return tokenizer_.encode(text); }
  std::string decode(std::span<const std::int32_t> ids) override { return tokenizer_.decode(ids); }
  std::int32_t prefix_token() const override { return tokenizer_.prefix_token(); }
  std::size_t max_length() const override { return static_cast<std::size_t>(length_); }
  std::vector<ContinuationScore> score(std::span<const TokenPair> pairs,
                                       const ScoringProgress&) override {
    return std::vector<ContinuationScore>(pairs.size());
  }

 private:
  TaskTokenizer& tokenizer_;
  std::int64_t length_;
};

}  // namespace

struct RunTasks::Prepared {
  TaskEvaluation evaluation;
};

RunTasks::~RunTasks() = default;

RunTasks::RunTasks(const RunConfig& config, const Tokenizer& tokenizer)
    : tokenizer_(tokenizer, config.model) {
  try {
    prepared_ = std::make_unique<Prepared>(
        Prepared{TaskEvaluation(tasks_of(config.train), options_of(config.train))});
    CheckedRequests checked(tokenizer_, config.data.sequence_length);
    evaluate(checked);  // also finds data for which a metric is not defined
  } catch (const UserError& error) {
    user_error("train.eval_tasks: {}", error.what());
  }
}

std::string RunTasks::description() const {
  std::string text;
  for (const PreparedTask& task : prepared_->evaluation.tasks())
    text += fmt::format(
        "{}{} ({})", text.empty() ? "" : ", ", task.task.name,
        format_number(static_cast<std::int64_t>(task.data.documents.size()), "document"));
  return text;
}

std::vector<StepRecord::TaskMetric> RunTasks::evaluate(ScoringModel& model,
                                                       const ProgressCall& progress) const {
  const std::vector<TaskAnswers> answers =
      prepared_->evaluation.ask(model, [&](std::size_t done, std::size_t all) {
        if (progress)
          progress(static_cast<std::int64_t>(std::min(done, all)), static_cast<std::int64_t>(all));
      });
  std::vector<StepRecord::TaskMetric> results;
  const auto add = [&](const std::string& name, const std::vector<MetricValue>& metrics) {
    for (const MetricValue& one : metrics)
      results.push_back({name, one.name, one.value, one.error});
  };
  const std::vector<PreparedTask>& tasks = prepared_->evaluation.tasks();
  std::vector<TaskScores> scores;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    scores.push_back(score_task(tasks[i], answers[i], {.bootstrap_samples = kBootstrapSamples}));
    add(tasks[i].task.name, scores.back().metrics);
  }
  for (const TaskSet::Group& group : prepared_->evaluation.groups())
    add(group.group.name, score_group(group, tasks, scores).metrics);
  return results;
}

}  // namespace kintsugi
