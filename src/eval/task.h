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
#include "eval/run/python_random.h"
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
  double temperature = 0;  // of sampling
  double top_p = 1;
  std::int64_t top_k = 0;
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
  std::filesystem::path file;
  EvalDocument config;  // all keys of the file
  std::vector<std::string> tags;
  std::map<std::string, std::vector<std::string>> data_files;  // by split
  std::string data_field;  // of a JSON file: the key whose value has the documents; or empty
  std::string dataset;     // of the Hugging Face hub, or empty
  std::string split, fewshot_split;  // which documents are scored, and which are examples
  std::string test_split;            // as given, or empty
  // A document is not its own example: as in lm-evaluation-harness, only if a fewshot_split is
  // given and is the test_split.
  bool skips_itself = false;
  std::vector<EvalDocument> samples;  // examples in the task file, instead of fewshot_split
  TaskField text, target, choices;
  OutputType output_type = OutputType::GenerateUntil;
  std::int64_t shots = 0;
  bool first_n = false;  // examples are the first documents of the split, not drawn
  FewShotFormat format;
  GenerationOptions generation;
  std::vector<TaskFilter> filters;
  std::vector<TaskMetric> metrics;
};

struct EvalGroup {
  struct Mean {
    std::string metric;
    bool weight_by_size = true;
    std::vector<std::string> filters = {};  // empty: all that the tasks have
  };
  std::string name, alias, version;
  std::vector<std::string> tasks;
  std::vector<Mean> means;
};

// Reads a task or a group, with the files that it includes.
std::variant<EvalTask, EvalGroup> read_task_file(const std::filesystem::path& path);

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
  EvalDocument label;                // of `gold`, as the task file gives it
  std::vector<std::string> targets;  // of a generated text
  TokenIds tokens;                   // of a document that is stored as tokens
  EvalDocument target;               // doc_to_target, for the record
};

// Chooses the examples for one document after the other, as lm-evaluation-harness does: the first
// of the pool, or a draw of Python's random.Random.
class FewShotSampler {
 public:
  // `pool` are the documents of task.fewshot_split; it must outlive the sampler.
  FewShotSampler(const EvalTask& task, std::span<const EvalDocument> pool,
                 std::uint64_t seed = 1234);
  // UserError if the pool has too few documents.
  std::vector<const EvalDocument*> sample(const EvalDocument& document);

 private:
  const EvalTask& task_;
  std::span<const EvalDocument> pool_;
  PythonRandom random_;
};

DocumentRequests make_requests(const EvalTask& task, const EvalDocument& document,
                               FewShotSampler& examples);

}  // namespace kintsugi
