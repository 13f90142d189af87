#include "eval/run/results.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/build_info.h"
#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"

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

}  // namespace

EvaluationResults score_evaluation(const TaskEvaluation& evaluation,
                                   const std::vector<TaskAnswers>& answers,
                                   const ScoreOptions& options) {
  EvaluationResults results;
  for (std::size_t i = 0; i < answers.size(); ++i)
    results.tasks.push_back(score_task(evaluation.tasks()[i], answers[i], options));
  for (const TaskSet::Group& group : evaluation.groups())
    results.groups.push_back(score_group(group, evaluation.tasks(), results.tasks));
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
                          const ResultSource& source) {
  EvalDocument json = {{"results", EvalDocument::object()}};
  add_tasks(json, evaluation, results);
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
                       const EvaluationResults& results, const ResultSource& source,
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

}  // namespace kintsugi
