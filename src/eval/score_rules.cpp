#include "eval/score_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "core/statistics.h"
#include "core/units.h"

namespace kintsugi {
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

}  // namespace

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

}  // namespace kintsugi
