#include "eval/result_files.h"

#include <fmt/ranges.h>

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

std::vector<fs::path> json_files_in(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.is_regular_file() && entry.path().extension() == ".json")
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

// The files in the directory itself, or in its only subdirectory that has some: `eval --output DIR`
// writes DIR/<model>/results_<date>.json.
std::vector<fs::path> result_files_in(const fs::path& directory) {
  std::vector<fs::path> files = json_files_in(directory);
  if (!files.empty()) return files;
  std::vector<std::string> models;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (!entry.is_directory()) continue;
    std::vector<fs::path> own = json_files_in(entry.path());
    if (own.empty()) continue;
    models.push_back(entry.path().string());
    files = std::move(own);
  }
  std::sort(models.begin(), models.end());
  if (models.empty()) user_error("the directory {} has no *.json", directory.string());
  if (models.size() > 1)
    user_error("{} has the results of several models: give one of {}", directory.string(),
               fmt::join(models, ", "));
  return files;
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
  for (const std::string& path : paths)
    if (fs::is_directory(path)) {
      const std::vector<fs::path> inside = result_files_in(path);
      files.insert(files.end(), inside.begin(), inside.end());
    } else {
      files.emplace_back(path);
    }
  std::vector<TaskResult> results;
  for (const fs::path& file : files)
    for (TaskResult& result : parse_results(read_text_file(file), file.string()))
      results.push_back(std::move(result));
  return results;
}

}  // namespace kintsugi
