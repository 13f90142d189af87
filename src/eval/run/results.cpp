#include "eval/run/results.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "core/build_info.h"
#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "data/tokenizers/unicode.h"
#include "eval/text.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

void add_metrics(EvalDocument& json, const std::vector<MetricValue>& metrics) {
  for (const MetricValue& metric : metrics) {
    json[metric.key()] = metric.value;
    json[metric.name + "_stderr," + metric.filter] =
        metric.error ? EvalDocument(*metric.error) : EvalDocument("N/A");
  }
}

EvalDocument version_json(const EvalTask& task) {
  if (task.config.contains("metadata") && task.config["metadata"].contains("version"))
    return task.config["metadata"]["version"];
  return "N/A";
}

EvalDocument directions_json(const std::vector<MetricValue>& metrics) {
  EvalDocument json = EvalDocument::object();
  for (const MetricValue& metric : metrics) json[metric.name] = metric.higher_is_better;
  return json;
}

// The number of examples that all tasks have.
EvalDocument shots_json(const TaskSet::Group& group, const std::vector<PreparedTask>& tasks) {
  const std::int64_t shots = tasks[group.tasks.front()].task.shots;
  for (const std::size_t task : group.tasks)
    if (tasks[task].task.shots != shots) return " ";
  return shots;
}

// Keys in alphabetical order.
EvalDocument sorted_json(const std::map<std::string, EvalDocument>& entries) {
  EvalDocument json = EvalDocument::object();
  for (const auto& [key, value] : entries) json[key] = value;
  return json;
}

void add_tasks(EvalDocument& json, const TaskEvaluation& evaluation,
               const EvaluationResults& results) {
  std::map<std::string, EvalDocument> configs, versions, shots, directions;
  EvalDocument counts = EvalDocument::object();
  for (std::size_t i = 0; i < evaluation.tasks().size(); ++i) {
    const PreparedTask& prepared = evaluation.tasks()[i];
    const EvalTask& task = prepared.task;
    EvalDocument& entry = json["results"][task.name];
    entry = {{"name", task.name},
             {"alias", task.alias.empty() ? task.name : task.alias},
             {"sample_len", prepared.requests.size()}};
    add_metrics(entry, results.tasks[i].metrics);
    configs[task.name] = task.config;
    configs[task.name]["num_fewshot"] = task.shots;
    configs[task.name]["metadata"]["config_source"] = task.file.string();
    configs[task.name]["metadata"]["data_files"] = prepared.data.files;  // as they were found
    versions[task.name] = version_json(task);
    shots[task.name] = task.shots;
    directions[task.name] = directions_json(results.tasks[i].metrics);
    counts[task.name] = {{"original", prepared.all_documents},
                         {"effective", prepared.requests.size()}};
  }
  EvalDocument groups = EvalDocument::object(), children = EvalDocument::object();
  for (std::size_t i = 0; i < evaluation.groups().size(); ++i) {
    const TaskSet::Group& group = evaluation.groups()[i];
    const std::string& name = group.group.name;
    EvalDocument entry = {{"alias", group.group.alias.empty() ? name : group.group.alias},
                          {"name", name}};
    if (!group.group.means.empty()) entry["sample_len"] = results.groups[i].documents;
    add_metrics(entry, results.groups[i].metrics);
    json["results"][name] = entry;
    if (!group.group.means.empty()) groups[name] = entry;
    children[name] = group.children;
    versions[name] = group.group.version.empty() ? "N/A" : group.group.version;
    shots[name] = shots_json(group, evaluation.tasks());
    directions[name] = directions_json(results.groups[i].metrics);
  }
  if (!groups.empty()) json["groups"] = groups;
  json["group_subtasks"] = children;
  json["configs"] = sorted_json(configs);
  json["versions"] = sorted_json(versions);
  json["n-shot"] = sorted_json(shots);
  json["higher_is_better"] = sorted_json(directions);
  json["n-samples"] = counts;
}

std::string date_for_files(double seconds) {
  const auto whole = static_cast<std::time_t>(seconds);
  const auto micro = static_cast<int>((seconds - std::floor(seconds)) * 1e6);
  return fmt::format("{:%Y-%m-%dT%H-%M-%S}.{:06}", fmt::localtime(whole), micro);
}

// Files that are removed unless all of them have been written.
class ResultFiles {
 public:
  ~ResultFiles() {
    std::error_code ignored;
    for (const fs::path& path : written_) fs::remove(path, ignored);
  }
  void write(const fs::path& path, std::string_view content) {
    write_file_atomically(path, content);
    written_.push_back(path);
  }
  void keep() { written_.clear(); }

 private:
  std::vector<fs::path> written_;
};

std::string dump(const EvalDocument& json, int indent) {
  return json.dump(indent, ' ', false, EvalDocument::error_handler_t::replace);
}

Scores score_all(const std::vector<PreparedTask>& tasks, const std::vector<TaskSet::Group>& groups,
                 const std::vector<TaskAnswers>& answers, const ScoreOptions& options) {
  Scores scores;
  for (std::size_t i = 0; i < answers.size(); ++i)
    scores.tasks.push_back(answers[i].empty() ? TaskScores()
                                              : score_task(tasks[i], answers[i], options));
  for (const TaskSet::Group& group : groups)
    scores.groups.push_back(score_group(group, tasks, scores.tasks));
  return scores;
}

// The questions that no training corpus has, with their answers.
PreparedTask clean_part(const PreparedTask& task, const TaskAnswers& answers, TaskAnswers& left) {
  PreparedTask part{.task = task.task, .data = {}, .requests = {}};
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (task.contamination->found[i]) continue;
    part.requests.push_back(task.requests[i]);
    left.push_back(answers[i]);
  }
  return part;
}

// "results" without the questions that are in a training corpus.
EvalDocument contamination_json(const TaskEvaluation& evaluation, const Scores& clean,
                                const EvaluationInfo& source) {
  EvalDocument json = {{"reports", source.contamination}, {"results", EvalDocument::object()}};
  for (std::size_t i = 0; i < evaluation.tasks().size(); ++i) {
    const PreparedTask& task = evaluation.tasks()[i];
    EvalDocument& entry = json["results"][task.task.name];
    const std::int64_t left = task.contamination->clean();
    entry = {{"sample_len", left},
             {"found", std::ssize(task.requests) - left},
             {"out_of_reach", task.contamination->out_of_reach}};
    add_metrics(entry, clean.tasks[i].metrics);
  }
  for (std::size_t i = 0; i < evaluation.groups().size(); ++i) {
    if (evaluation.groups()[i].group.means.empty()) continue;
    EvalDocument& entry = json["results"][evaluation.groups()[i].group.name];
    entry = {{"sample_len", clean.groups[i].documents}};
    add_metrics(entry, clean.groups[i].metrics);
  }
  return json;
}

}  // namespace

bool has_contamination(const TaskEvaluation& evaluation) {
  return !evaluation.tasks().empty() && evaluation.tasks().front().contamination.has_value();
}

EvaluationResults score_evaluation(const TaskEvaluation& evaluation,
                                   const std::vector<TaskAnswers>& answers,
                                   const ScoreOptions& options) {
  EvaluationResults results;
  static_cast<Scores&>(results) =
      score_all(evaluation.tasks(), evaluation.groups(), answers, options);
  if (!has_contamination(evaluation)) return results;
  std::vector<PreparedTask> tasks;
  std::vector<TaskAnswers> left;
  for (std::size_t i = 0; i < answers.size(); ++i)
    tasks.push_back(clean_part(evaluation.tasks()[i], answers[i], left.emplace_back()));
  results.clean = score_all(tasks, evaluation.groups(), left, options);
  return results;
}

std::string name_for_files(const std::string& model) {
  std::string name;
  bool replaced = false;
  for (const char c : model) {
    const bool special = std::string_view("\"<>:/|\\?*[]").find(c) != std::string_view::npos;
    if (!special) name.push_back(c);
    if (special && !replaced) name += "__";
    replaced = special;
  }
  constexpr std::size_t kMost = 160;  // bytes: names of files have up to 255
  if (name.size() > kMost)
    name = sha256_hex(name).substr(0, 16) + "_" + name.substr(name.size() - kMost);
  return name == "." || name == ".." || name.empty() ? "model" + name : name;
}

EvalDocument results_json(const TaskEvaluation& evaluation, const EvaluationResults& results,
                          const EvaluationInfo& source) {
  EvalDocument json = {{"results", EvalDocument::object()}};
  add_tasks(json, evaluation, results);
  if (results.clean) json["contamination"] = contamination_json(evaluation, *results.clean, source);
  json["config"] = source.options;
  json["git_hash"] = nullptr;
  json["date"] = source.start_s;
  json["kintsugi_version"] = program_version();
  json["model_source"] = "kintsugi";
  json["model_name"] = source.model;
  json["model_name_sanitized"] = name_for_files(source.model);
  json["start_time"] = source.start_s;
  json["end_time"] = source.start_s + source.duration_s;
  json["total_evaluation_time_seconds"] = fmt::format("{}", source.duration_s);
  return json;
}

fs::path write_results(const fs::path& directory, const TaskEvaluation& evaluation,
                       const EvaluationResults& results, const EvaluationInfo& source,
                       const std::vector<TaskAnswers>* answers) {
  const fs::path own = directory / name_for_files(source.model);
  fs::create_directories(own);
  const std::string date = date_for_files(source.start_s + source.duration_s);
  EvalDocument json = results_json(evaluation, results, source);
  ResultFiles files;
  json["task_hashes"] = EvalDocument::object();
  for (std::size_t i = 0; answers != nullptr && i < answers->size(); ++i) {
    const PreparedTask& task = evaluation.tasks()[i];
    std::string lines, hashes;
    for (const EvalDocument& sample : samples_json(task, results.tasks[i], (*answers)[i])) {
      lines += dump(sample, -1) + "\n";
      for (const char* hash : {"doc_hash", "prompt_hash", "target_hash"})
        hashes += sample[hash].get<std::string>();
    }
    json["task_hashes"][task.task.name] = sha256_hex(hashes);
    files.write(own / fmt::format("samples_{}_{}.jsonl", name_for_files(task.task.name), date),
                lines);
  }
  const fs::path path = own / fmt::format("results_{}.json", date);
  files.write(path, dump(json, 2) + "\n");
  files.keep();
  return path;
}

// ---- samples

namespace {

// repr() of a Python string; without the rules for characters that cannot be printed above U+009F.
std::string quoted_as_python(const std::string& text) {
  const bool single = text.find('\'') != std::string::npos;
  const char quote = single && text.find('"') == std::string::npos ? '"' : '\'';
  std::string result(1, quote);
  for (const char32_t c : code_points_of(text)) {
    if (c == '\n')
      result += "\\n";
    else if (c == '\t')
      result += "\\t";
    else if (c == '\r')
      result += "\\r";
    else if (c < 32 || (c >= 127 && c < 161))
      result += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    else {
      if (c == '\\' || c == static_cast<char32_t>(quote)) result += '\\';
      utf8_append(result, c);
    }
  }
  return result + quote;
}

// str() of a Python value.
std::string as_python(const EvalDocument& value, bool nested = false) {
  if (value.is_string())
    return nested ? quoted_as_python(value.get<std::string>()) : value.get<std::string>();
  if (!value.is_structured()) return python_text(value);
  std::string text;
  for (const auto& [key, item] : value.items()) {
    if (!text.empty()) text += ", ";
    if (value.is_object()) text += quoted_as_python(key) + ": ";
    text += as_python(item, true);
  }
  return value.is_array() ? "[" + text + "]" : "{" + text + "}";
}

EvalDocument pair_json(const ContinuationScore& score) {
  return EvalDocument::array(
      {EvalDocument(score.log_probability).dump(), score.is_greedy ? "True" : "False"});
}

EvalDocument arguments_json(const PreparedTask& task, const DocumentRequests& asked) {
  EvalDocument json = EvalDocument::object();
  std::vector<EvalRequest> requests = asked.requests;
  requests.insert(requests.end(), asked.unconditional.begin(), asked.unconditional.end());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EvalDocument& entry = json[fmt::format("gen_args_{}", i)];
    entry["arg_0"] = requests[i].context;
    if (task.task.output_type == OutputType::GenerateUntil)
      entry["arg_1"] = {{"until", task.task.generation.until},
                        {"max_gen_toks", task.task.generation.max_gen_toks},
                        {"do_sample", task.task.generation.do_sample},
                        {"temperature", task.task.generation.temperature}};
    else if (task.task.output_type != OutputType::LoglikelihoodRolling)
      entry["arg_1"] = requests[i].continuation;
  }
  return json;
}

// "resps" and "filtered_resps".
void add_responses(EvalDocument& json, const PreparedTask& task, const DocumentAnswer& answer,
                   const std::vector<Response>& filtered) {
  EvalDocument all = EvalDocument::array(), kept = EvalDocument::array();
  const auto add = [&](const EvalDocument& response) {
    all.push_back(EvalDocument::array({response}));
    kept.push_back(response);
  };
  if (task.task.output_type == OutputType::GenerateUntil) {
    all.push_back(EvalDocument::array({answer.text}));
    for (const Response& response : filtered)
      kept.push_back(response ? EvalDocument(*response) : EvalDocument(nullptr));
  } else if (task.task.output_type == OutputType::LoglikelihoodRolling) {
    add(EvalDocument(answer.rolling.log_probability).dump());
  } else {
    for (const ContinuationScore& score : answer.scores) add(pair_json(score));
    for (const ContinuationScore& score : answer.unconditional) add(pair_json(score));
  }
  json["resps"] = all;
  json["filtered_resps"] = kept;
}

}  // namespace

std::vector<EvalDocument> samples_json(const PreparedTask& task, const TaskScores& scores,
                                       const TaskAnswers& answers) {
  std::vector<EvalDocument> samples;
  for (const FilteredAnswers& filter : scores.filters)
    for (std::size_t i = 0; i < answers.size(); ++i) {
      const EvalDocument& document = task.data.documents[i];
      const DocumentRequests& asked = task.requests[i];
      EvalDocument& json = samples.emplace_back();
      const std::string target = as_python(asked.target);
      json = {{"doc_id", i}, {"doc", document}, {"target", target}};
      json["arguments"] = arguments_json(task, asked);
      add_responses(json, task, answers[i],
                    filter.responses.empty() ? std::vector<Response>() : filter.responses[i]);
      json["filter"] = filter.filter;
      json["metrics"] = EvalDocument::array();
      for (const TaskMetric& metric : task.task.metrics) json["metrics"].push_back(metric.name);
      if (task.contamination) json["contaminated"] = bool{task.contamination->found[i]};
      json["doc_hash"] = sha256_hex(document.dump(2));
      json["prompt_hash"] = sha256_hex(asked.requests.front().context);
      json["target_hash"] = sha256_hex(target);
      for (std::size_t k = 0; k < task.task.metrics.size(); ++k)
        json[task.task.metrics[k].name] = filter.per_metric[k][i];
    }
  return samples;
}

}  // namespace kintsugi
