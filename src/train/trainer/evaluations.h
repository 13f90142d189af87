#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "train/run_tasks.h"
#include "train/text_samples.h"
#include "train/trainer/run_context.h"

namespace kintsugi {

// The tasks of train.eval_tasks and the texts of train.samples, with the model as it is trained.
// All ranks decide alike.
class Evaluations {
 public:
  explicit Evaluations(RunContext& run);  // reads tasks and prompts

  std::string tasks() const { return tasks_ ? tasks_->description() : ""; }  // on rank 0
  void find_evaluated();
  void forget_evaluated() { evaluated_.clear(); }  // the steps are trained on other data
  // `saves`: a checkpoint will be saved after this step.
  // `asked`: somebody asks for them now.
  bool tasks_are_due(bool saves, bool asked) const;
  void evaluate_tasks();
  bool samples_are_due(bool saves) const;
  void generate_samples();

 private:
  void report_tasks() const;

  RunContext& run_;
  std::unique_ptr<RunTasks> tasks_;  // on rank 0
  std::optional<SamplePrompts> samples_;
  std::set<std::int64_t> evaluated_;  // later steps whose tasks an earlier process has evaluated
};

}  // namespace kintsugi
