#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "eval/filters.h"
#include "eval/requests.h"
#include "eval/scoring.h"
#include "eval/task_template.h"

namespace kintsugi {

// Task files of lm-evaluation-harness (YAML). Keys that Kintsugi does not know are errors, and so
// is everything that needs Python code.

enum class OutputType { MultipleChoice, Loglikelihood, LoglikelihoodRolling, GenerateUntil };

// doc_to_text, doc_to_target or doc_to_choice: a literal, a column's name or a template.
class TaskField {
 public:
  TaskField() = default;  // not given
  explicit TaskField(EvalDocument literal) : literal_(std::move(literal)), given_(true) {}
  TaskField(const std::string& text, const std::string& source)
      : column_(text), template_({TaskTemplate(text, source)}), given_(true) {}

  bool given() const { return given_; }
  EvalDocument value(const EvalDocument& document) const;

 private:
  EvalDocument literal_;
  std::string column_;
  std::vector<TaskTemplate> template_;  // none for a literal
  bool given_ = false;
};

struct GenerationOptions {
  std::vector<std::string> until = {};  // texts that end a response
  std::int64_t max_gen_toks = 256;
  bool do_sample = false;
  double temperature = 0;
};

struct FilterStep {
  std::string function;
  RegexFilterOptions regex;                    // of "regex"
  std::map<std::string, std::string> mapping;  // of "map"
  std::optional<std::string> default_value;
};
struct TaskFilter {
  std::string name;
  std::vector<FilterStep> steps;
};
ResponseFilters make_filters(const TaskFilter& filter);

struct TaskMetric {
  std::string name;
  bool higher_is_better = true;
  ExactMatchOptions exact_match = {};  // of "exact_match" of a generated text
};

struct EvalTask {
  std::string name, alias, version;
  std::vector<std::string> tags;
  std::map<std::string, std::vector<std::string>> data_files;  // by split; JSON lines
  std::string dataset;                                         // of the Hugging Face hub, or empty
  std::string split, fewshot_split;  // which documents are scored, and which are examples
  TaskField text, target, choices;
  OutputType output_type = OutputType::GenerateUntil;
  std::int64_t shots = 0;
  bool first_n = false;  // examples are the first documents of the split
  FewShotFormat format;
  GenerationOptions generation;
  std::vector<TaskFilter> filters;
  std::vector<TaskMetric> metrics;
};

struct EvalGroup {
  struct Mean {
    std::string metric;
    bool weight_by_size = true;
  };
  std::string name, alias, version;
  std::vector<std::string> tasks;
  std::vector<Mean> means;
};

// Reads a task or a group, with the files that it includes.
std::variant<EvalTask, EvalGroup> read_task_file(const std::filesystem::path& path);

// The documents of a split: JSON lines, by paths from the working directory. UserError if the task
// has another data set.
std::vector<EvalDocument> read_documents(const EvalTask& task, const std::string& split);

struct EvalRequest {
  std::string context, continuation;  // without continuation: generate, or score the whole context
  bool operator==(const EvalRequest&) const = default;
};
// What is asked of a model about one document, and what the answers are compared with.
struct DocumentRequests {
  std::vector<EvalRequest> requests;
  std::vector<EvalRequest> unconditional;  // of the choices, for acc_mutual_info
  std::vector<std::string> choices;        // multiple choice
  Gold gold = std::int64_t{0};
  std::vector<std::string> targets;  // of a generated text
};
// `examples` are the documents of task.fewshot_split. The document itself is never its own example.
DocumentRequests make_requests(const EvalTask& task, const EvalDocument& document,
                               std::span<const EvalDocument> examples);

}  // namespace kintsugi
