#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "eval/run/task_scores.h"

namespace kintsugi {

// The scores of one model in all tasks of an evaluation. A task without documents has none.
struct Scores {
  std::vector<TaskScores> tasks;
  std::vector<GroupScores> groups;
};
struct EvaluationResults : Scores {
  std::optional<Scores> clean;  // without the questions that are in a training corpus
};
bool has_contamination(const TaskEvaluation& evaluation);
EvaluationResults score_evaluation(const TaskEvaluation& evaluation,
                                   const std::vector<TaskAnswers>& answers,
                                   const ScoreOptions& options);

// How the results were computed.
struct EvaluationInfo {
  std::string model = {};                       // the directory
  EvalDocument options = {};                    // a map, written as "config"
  std::vector<std::string> contamination = {};  // the curation.json that were read
  double start_s = 0;                           // seconds since 1970
  double duration_s = 0;
};
// The model's name as a file name, as lm-evaluation-harness writes it: "/" becomes "__".
std::string name_for_files(const std::string& model);

// The content of a result file of lm-evaluation-harness.
EvalDocument results_json(const TaskEvaluation& evaluation, const EvaluationResults& results,
                          const EvaluationInfo& source);
// One line per document and filter, as in its sample files.
std::vector<EvalDocument> samples_json(const PreparedTask& task, const TaskScores& scores,
                                       const TaskAnswers& answers);

// Writes DIRECTORY/<name>/results_<date>.json, and samples_<task>_<date>.jsonl if `answers` is not
// null. Returns the path of the first. After an error none of the files is left.
std::filesystem::path write_results(const std::filesystem::path& directory,
                                    const TaskEvaluation& evaluation,
                                    const EvaluationResults& results, const EvaluationInfo& source,
                                    const std::vector<TaskAnswers>* answers);

// A table of Markdown: one line per metric, and two columns per model. With contamination, another
// table has the scores of the clean questions, and their number.
std::string results_table(const TaskEvaluation& evaluation,
                          const std::vector<EvaluationResults>& results,
                          const std::vector<std::string>& models);

}  // namespace kintsugi
