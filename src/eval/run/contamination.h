#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/curation/curation_report.h"
#include "data/curation/decontamination.h"
#include "eval/task_data.h"

namespace kintsugi {

// The questions of a task with their answers, without examples and description: what
// `decontaminate` looks for in a corpus.
std::vector<ReferenceSample> reference_samples(EvalTask task, const TaskDocuments& documents);

// What curations found of the questions of a task.
struct TaskContamination {
  std::vector<bool> found;  // by document of the evaluation
  // Of all questions, so many could not be found: too short, or in the words of a template.
  std::int64_t out_of_reach = 0;

  std::int64_t clean() const;  // documents
};

// Reads curation.json of a corpus, or of several that a model was trained on. Questions are equal
// if their texts are. `documents` are all of the task. UserError if a report did not look for
// exactly these questions.
class ContaminationReports {
 public:
  explicit ContaminationReports(const std::vector<std::filesystem::path>& paths);

  TaskContamination of(const EvalTask& task, const TaskDocuments& documents,
                       std::size_t evaluated) const;
  // The reports of corpora without the documents that have questions.
  std::vector<std::string> with_removed_documents() const;

 private:
  struct Report {
    std::string path;
    std::vector<StepReport> steps;  // that look for questions
  };
  const StepReport& step_for(const Report& report, const std::string& task,
                             const std::string& hash) const;

  std::vector<Report> reports_;
};

}  // namespace kintsugi
