#include "eval/result_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using ResultsJson = nlohmann::ordered_json;

std::optional<std::int64_t> whole_number_at(const ResultsJson& json, const std::string& key) {
  if (!json.is_object() || !json.contains(key) || !json[key].is_number_integer())
    return std::nullopt;
  return json[key].get<std::int64_t>();
}

std::optional<std::int64_t> shots_of(const ResultsJson& root, const std::string& task) {
  if (root.contains("n-shot"))
    if (const auto shots = whole_number_at(root["n-shot"], task)) return shots;
  return root.contains("config") ? whole_number_at(root["config"], "num_fewshot") : std::nullopt;
}

}  // namespace

std::optional<double> TaskResult::find(const std::string& metric) const {
  for (const std::string& key : {metric, metric + ",none"})
    if (const auto found = metrics.find(key); found != metrics.end()) return found->second;
  std::optional<double> value;
  for (const auto& [key, number] : metrics) {
    if (!key.starts_with(metric + ",")) continue;
    if (value) user_error("{}: {} has {} with several filters", file, task, metric);
    value = number;
  }
  return value;
}

std::vector<TaskResult> parse_results(const std::string& json, const std::string& source) {
  const ResultsJson root = ResultsJson::parse(json, nullptr, false);
  if (root.is_discarded()) user_error("{} is not JSON", source);
  std::vector<TaskResult> results;
  const bool nested = root.is_object() && root.contains("results");
  for (const auto& [task, metrics] : (nested ? root["results"] : root).items()) {
    if (!metrics.is_object() || (!nested && task == "config")) continue;
    TaskResult result{.file = source, .task = task, .metrics = {}, .shots = shots_of(root, task)};
    for (const auto& [key, value] : metrics.items())
      if (value.is_number()) result.metrics[key] = value.get<double>();
    if (!result.metrics.empty()) results.push_back(std::move(result));
  }
  if (results.empty()) user_error("{} has no results: give a result file of lm-eval", source);
  return results;
}

std::vector<TaskResult> read_results(const std::vector<std::string>& paths) {
  std::vector<fs::path> files;
  for (const std::string& path : paths) {
    if (!fs::is_directory(path)) {
      files.emplace_back(path);
      continue;
    }
    const std::size_t before = files.size();
    for (const auto& entry : fs::directory_iterator(path))
      if (entry.path().extension() == ".json") files.push_back(entry.path());
    if (files.size() == before) user_error("the directory {} has no *.json", path);
    std::sort(files.begin() + static_cast<std::ptrdiff_t>(before), files.end());
  }
  std::vector<TaskResult> results;
  for (const fs::path& file : files)
    for (TaskResult& result : parse_results(read_text_file(file), file.string()))
      results.push_back(std::move(result));
  return results;
}

}  // namespace kintsugi
