#include "eval/score_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/statistics.h"
#include "core/units.h"
#include "eval/text.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

// Looks up the results that a rule needs, and collects those that are missing.
class RuleLookup {
 public:
  explicit RuleLookup(std::span<const TaskResult> results) : results_(results) {}

  std::optional<double> find(const std::vector<ScoreRule::Source>& names,
                             std::optional<std::int64_t> shots) {
    std::string other_shots;
    for (const ScoreRule::Source& source : names)
      if (const auto value = find(source, shots, other_shots)) return value;
    missing_.push_back(fmt::format("{} ({}{})", names.front().task, names.front().metric,
                                   other_shots.empty() ? "" : "; " + other_shots));
    return std::nullopt;
  }

  void complain(const ScoreRule& rule) const {
    if (missing_.empty()) return;
    constexpr std::size_t kShown = 5;
    const std::size_t shown = std::min(missing_.size(), kShown);
    const std::vector<std::string> names(missing_.begin(),
                                         missing_.begin() + static_cast<std::ptrdiff_t>(shown));
    user_error("the rule {} needs results that are not in the files: {}{}; --only selects scores",
               rule.name, fmt::join(names, ", "),
               missing_.size() > shown ? fmt::format(" and {} more", missing_.size() - shown) : "");
  }

 private:
  std::optional<double> find(const ScoreRule::Source& source, std::optional<std::int64_t> shots,
                             std::string& other_shots) const {
    std::optional<double> value;
    std::string file;
    for (const TaskResult& result : results_) {
      if (result.task != source.task) continue;
      const std::optional<double> found = result.find(source.metric);
      if (!found) continue;
      if (shots && result.shots && *shots != *result.shots) {
        other_shots = fmt::format("{}-shot in {}, not {}-shot", *result.shots, result.file, *shots);
        continue;
      }
      if (value && *value != *found)
        user_error("{} and {} have different results of {}: give one of them", file, result.file,
                   source.task);
      value = found;
      file = result.file;
    }
    return value;
  }

  std::span<const TaskResult> results_;
  std::vector<std::string> missing_;
};

void check_names(const ScoreRule& rule, std::span<const std::string> only) {
  std::vector<std::string> known;
  for (const ScoreRule::Score& score : rule.scores) known.push_back(score.name);
  for (const std::string& name : only)
    if (std::find(known.begin(), known.end(), name) == known.end())
      user_error("the rule {} has no score '{}': it has {}", rule.name, name,
                 fmt::join(known, ", "));
}

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

// ---- the rule behind the published scores of Poro 34B

using Component = ScoreRule::Component;

constexpr std::string_view kMmluSubjects =
    "abstract_algebra anatomy astronomy business_ethics clinical_knowledge college_biology "
    "college_chemistry college_computer_science college_mathematics college_medicine "
    "college_physics computer_security conceptual_physics econometrics electrical_engineering "
    "elementary_mathematics formal_logic global_facts high_school_biology high_school_chemistry "
    "high_school_computer_science high_school_european_history high_school_geography "
    "high_school_government_and_politics high_school_macroeconomics high_school_mathematics "
    "high_school_microeconomics high_school_physics high_school_psychology "
    "high_school_statistics high_school_us_history high_school_world_history human_aging "
    "human_sexuality international_law jurisprudence logical_fallacies machine_learning "
    "management marketing medical_genetics miscellaneous moral_disputes moral_scenarios "
    "nutrition philosophy prehistory professional_accounting professional_law "
    "professional_medicine professional_psychology public_relations security_studies sociology "
    "us_foreign_policy virology world_religions";

// `kintsugi eval` and lm-evaluation-harness since v0.4 call the metric acc.
Component finbench(const std::string& name, const std::vector<std::string>& tasks) {
  Component component{.name = name, .shots = 3, .tasks = {}};
  for (const std::string& task : tasks)
    component.tasks.push_back(
        {{"bigbench_" + task, "multiple_choice_grade"}, {"bigbench_" + task, "acc"}});
  return component;
}

// FIN-bench in 11 groups; HHH alignment is not among them.
ScoreRule::Score finnish() {
  std::vector<std::string> arithmetic;
  for (int digits = 1; digits <= 5; ++digits)
    for (const char* operation : {"addition", "division", "multiplication", "subtraction"})
      arithmetic.push_back(fmt::format("{}_digit_{}", digits, operation));
  ScoreRule::Score score{
      "finnish",
      {finbench("arithmetic", arithmetic),
       finbench("cause_and_effect", {"one_sentence", "one_sentence_no_prompt", "two_sentences"})}};
  for (const char* task :
       {"analogies", "emotions", "empirical_judgments", "general_knowledge", "intent_recognition",
        "misconceptions", "paraphrase", "sentence_ambiguity", "similarities_abstraction"})
    score.components.push_back(finbench(task, {task}));
  return score;
}

// The six tasks of the first Open LLM Leaderboard, under their names before and since v0.4.
ScoreRule::Score english() {
  Component mmlu{.name = "mmlu", .shots = 5, .tasks = {}};
  for (const std::string_view subject : split_at_spaces(kMmluSubjects))
    mmlu.tasks.push_back({{fmt::format("hendrycksTest-{}", subject), "acc"},
                          {fmt::format("mmlu_{}", subject), "acc"}});
  return {"english",
          {{"arc_challenge", 25, {{{"arc_challenge", "acc_norm"}}}},
           {"hellaswag", 10, {{{"hellaswag", "acc_norm"}}}},
           mmlu,
           {"truthfulqa", 0, {{{"truthfulqa_mc", "mc2"}, {"truthfulqa_mc2", "acc"}}}},
           {"winogrande", 5, {{{"winogrande", "acc"}}}},
           {"gsm8k", 5, {{{"gsm8k", "acc"}, {"gsm8k", "exact_match,strict-match"}}}}}};
}

ScoreRule::Score code() {
  return {"code",
          {{"humaneval", std::nullopt, {{{"humaneval", "pass@10"}}}},
           {"mbpp", std::nullopt, {{{"mbpp", "pass@10"}}}}}};
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

std::vector<RuleScore> apply_rule(const ScoreRule& rule, std::span<const TaskResult> results,
                                  std::span<const std::string> only) {
  check_names(rule, only);
  RuleLookup lookup(results);
  std::vector<RuleScore> scores;
  for (const ScoreRule::Score& score : rule.scores) {
    if (!only.empty() && std::find(only.begin(), only.end(), score.name) == only.end()) continue;
    RuleScore& result = scores.emplace_back(RuleScore{score.name, 0, {}});
    std::vector<double> values;
    for (const ScoreRule::Component& component : score.components) {
      std::vector<double> tasks;
      for (const auto& names : component.tasks)
        tasks.push_back(lookup.find(names, component.shots).value_or(0));
      values.push_back(100 * mean(tasks));
      result.components.push_back({component.name, values.back()});
    }
    result.value = mean(values);
  }
  lookup.complain(rule);
  return scores;
}

const ScoreRule& score_rule(std::string_view name) {
  static const ScoreRule poro{"poro", {finnish(), english(), code()}};
  if (name != poro.name) user_error("unknown rule '{}': the rules are: poro", name);
  return poro;
}

}  // namespace kintsugi
