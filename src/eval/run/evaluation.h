#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "eval/run/contamination.h"
#include "eval/run/task_set.h"
#include "eval/scoring_model.h"
#include "eval/task_data.h"

namespace kintsugi {

struct EvaluationOptions {
  std::optional<std::int64_t> shots = {};  // instead of num_fewshot of the tasks
  // Documents of each task: a number, or below 1 a fraction; empty: all.
  std::optional<double> limit = {};
  std::uint64_t fewshot_seed = 1234;  // lm-evaluation-harness's default
  // curation.json of the training corpora: questions that they have are counted apart.
  std::vector<std::filesystem::path> contamination = {};
};

// What a model answered to one document.
struct DocumentAnswer {
  std::vector<ContinuationScore> scores;         // of the choices or the continuation
  std::vector<ContinuationScore> unconditional;  // of the choices, for acc_mutual_info
  RollingScore rolling;
  std::string text;  // generated
};
using TaskAnswers = std::vector<DocumentAnswer>;  // by document

// A task with its documents and what is asked about them.
struct PreparedTask {
  EvalTask task;
  TaskDocuments data;
  std::vector<DocumentRequests> requests;  // by document
  std::size_t all_documents = 0;           // before the limit
  std::optional<TaskContamination> contamination = {};
};

// Tasks to ask models about. The same object can ask several models.
class TaskEvaluation {
 public:
  // Reads the documents and makes the requests. UserError with file and line of a wrong document.
  TaskEvaluation(TaskSet tasks, const EvaluationOptions& options,
                 const ReadText& read = read_whole_text);

  const std::vector<PreparedTask>& tasks() const { return tasks_; }
  const std::vector<TaskSet::Group>& groups() const { return groups_; }

  // The answers by task. Requests that begin alike are computed one after the other; equal ones
  // once. `progress` is called with the computed and all requests.
  using Progress = std::function<void(std::size_t done, std::size_t all)>;
  std::vector<TaskAnswers> ask(ScoringModel& model, const Progress& progress) const;

 private:
  void prepare(EvalTask task, const EvaluationOptions& options, const ReadText& read);
  void find_contamination(const EvaluationOptions& options, const ReadText& read);

  std::vector<PreparedTask> tasks_;
  std::vector<TaskSet::Group> groups_;
};

}  // namespace kintsugi
