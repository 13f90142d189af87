#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/progress.h"
#include "train/config/config.h"
#include "train/step_metrics.h"
#include "train/training_model.h"

namespace kintsugi {

// The tasks of train.eval_tasks with their documents. Only rank 0 has them.
class RunTasks {
 public:
  // Reads all files and encodes all requests, so that an evaluation cannot fail because of them.
  // UserError names the file, and refuses tasks whose answers are generated texts.
  RunTasks(const RunConfig& config, const Tokenizer& tokenizer);
  ~RunTasks();

  std::string description() const;  // "lambada (500 documents), arc_easy (2376 documents)"
  TaskTokenizer& tokenizer() { return tokenizer_; }
  // The metrics of all tasks, then those of all groups.
  // `progress`: requests.
  std::vector<StepRecord::TaskMetric> evaluate(ScoringModel& model,
                                               const ProgressCall& progress = {}) const;

 private:
  TaskTokenizer tokenizer_;
  struct Prepared;
  std::unique_ptr<Prepared> prepared_;
};

}  // namespace kintsugi
