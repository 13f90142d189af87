#include "eval/scoring.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <utility>

#include "core/error.h"
#include "core/statistics.h"
#include "eval/text.h"

namespace kintsugi {
namespace {

// The first of the largest; a NaN is larger than any number, as in NumPy.
std::int64_t argmax(const std::vector<double>& values) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < values.size(); ++i)
    if (!std::isnan(values[best]) && (std::isnan(values[i]) || values[i] > values[best])) best = i;
  return static_cast<std::int64_t>(best);
}

std::vector<double> softmax(const std::vector<double>& values) {
  const double largest = *std::max_element(values.begin(), values.end());
  std::vector<double> powers;
  double sum = 0;
  for (const double value : values) sum += powers.emplace_back(std::exp(value - largest));
  for (double& power : powers) power /= sum;
  return powers;
}

}  // namespace

ContinuationScore score_continuation(std::span<const double> log_probabilities,
                                     std::span<const double> largest) {
  KINTSUGI_CHECK(log_probabilities.size() == largest.size(), "{} scores, {} largest",
                 log_probabilities.size(), largest.size());
  ContinuationScore score;
  for (std::size_t i = 0; i < largest.size(); ++i) {
    score.log_probability += log_probabilities[i];
    if (log_probabilities[i] != largest[i]) score.is_greedy = false;
  }
  return score;
}

std::vector<std::int64_t> gold_indices(const Gold& gold, std::span<const std::string> choices) {
  if (const auto* text = std::get_if<std::string>(&gold)) {
    const auto found = std::find(choices.begin(), choices.end(), *text);
    if (found == choices.end()) return {};
    return {found - choices.begin()};
  }
  std::vector<std::int64_t> indices;
  if (const auto* index = std::get_if<std::int64_t>(&gold))
    indices = {*index};
  else
    indices = std::get<std::vector<std::int64_t>>(gold);
  std::erase_if(indices, [&](std::int64_t index) {
    return index >= static_cast<std::int64_t>(choices.size());
  });
  return indices;
}

MultipleChoiceScore score_multiple_choice(std::span<const std::string> choices,
                                          std::span<const ContinuationScore> scores,
                                          const Gold& gold, std::span<const double> unconditional) {
  if (choices.empty()) user_error("a document without choices cannot be scored");
  KINTSUGI_CHECK(choices.size() == scores.size() &&
                     (unconditional.empty() || unconditional.size() == choices.size()),
                 "{} choices, {} scores, {} without context", choices.size(), scores.size(),
                 unconditional.size());
  MultipleChoiceScore result;
  result.gold = gold_indices(gold, choices);
  const auto right = [&](auto value_of) {
    std::vector<double> values;
    for (std::size_t i = 0; i < choices.size(); ++i) values.push_back(value_of(i));
    const std::int64_t chosen = argmax(values);
    return std::count(result.gold.begin(), result.gold.end(), chosen) > 0 ? 1.0 : 0.0;
  };
  const auto plain = [&](std::size_t i) { return scores[i].log_probability; };
  result.acc = right(plain);
  result.acc_norm = right(
      [&](std::size_t i) { return plain(i) / static_cast<double>(count_code_points(choices[i])); });
  result.acc_bytes =
      right([&](std::size_t i) { return plain(i) / static_cast<double>(choices[i].size()); });
  if (!unconditional.empty())
    result.acc_mutual_info = right([&](std::size_t i) { return plain(i) - unconditional[i]; });
  for (std::int64_t index : result.gold) {
    if (index < 0) index += static_cast<std::int64_t>(choices.size());  // counts from the end
    if (index >= 0 && scores[static_cast<std::size_t>(index)].is_greedy) result.exact_match = 1;
  }
  std::vector<double> values;
  for (const ContinuationScore& score : scores) values.push_back(score.log_probability);
  result.probabilities = softmax(values);
  result.predicted = argmax(values);
  return result;
}

RollingScore score_rolling(std::string_view text,
                           std::span<const double> window_log_probabilities) {
  RollingScore score{0, count_words(text), text.size()};
  for (const double value : window_log_probabilities) score.log_probability += value;
  return score;
}

// ---- metrics over documents

namespace {

template <class Document, class Value>
std::vector<double> values_of(std::span<const Document> documents, Value value) {
  std::vector<double> values;
  for (const Document& document : documents) values.push_back(value(document));
  return values;
}

void check_not_empty(std::size_t count, const char* what) {
  if (count == 0) user_error("there is no {} to average", what);
}

}  // namespace

std::optional<double> stderr_of_mean(const std::vector<double>& values) {
  if (values.size() < 2) return std::nullopt;
  const double centre = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - centre) * (value - centre);
  const auto n = static_cast<double>(values.size());
  return std::sqrt(squares / (n - 1)) / std::sqrt(n);
}

Metric mean_metric(const std::string& name, const std::vector<double>& values) {
  check_not_empty(values.size(), "document");
  return {name, mean(values), stderr_of_mean(values)};
}

std::vector<Metric> multiple_choice_metrics(std::span<const MultipleChoiceScore> documents) {
  using Score = MultipleChoiceScore;
  const auto metric = [&](const char* name, auto value) {
    return mean_metric(name, values_of(documents, value));
  };
  std::vector<Metric> metrics = {
      metric("acc", [](const Score& score) { return score.acc; }),
      metric("acc_norm", [](const Score& score) { return score.acc_norm; }),
      metric("acc_bytes", [](const Score& score) { return score.acc_bytes; })};
  if (documents.front().acc_mutual_info)
    metrics.push_back(metric("acc_mutual_info",
                             [](const Score& score) { return score.acc_mutual_info.value(); }));
  metrics.push_back(metric("exact_match", [](const Score& score) { return score.exact_match; }));
  const bool comparable = std::all_of(documents.begin(), documents.end(), [&](const Score& score) {
    return score.gold.size() == 1 &&
           score.probabilities.size() == documents.front().probabilities.size();
  });
  if (comparable) metrics.push_back({"brier_score", brier_score(documents), std::nullopt});
  return metrics;
}

std::vector<Metric> loglikelihood_metrics(std::span<const ContinuationScore> documents) {
  const Metric logs = mean_metric(
      "log-probability",
      values_of(documents, [](const ContinuationScore& score) { return score.log_probability; }));
  return {{"perplexity", std::exp(-logs.value), std::nullopt},
          mean_metric("acc", values_of(documents, [](const ContinuationScore& score) {
                        return score.is_greedy ? 1.0 : 0.0;
                      }))};
}

std::vector<Metric> rolling_metrics(std::span<const RollingScore> documents) {
  check_not_empty(documents.size(), "document");
  double logs = 0, words = 0, bytes = 0;
  for (const RollingScore& document : documents) {
    logs += document.log_probability;
    words += static_cast<double>(document.words);
    bytes += static_cast<double>(document.bytes);
  }
  if (bytes == 0) user_error("all documents are empty: bits per byte are not defined");
  return {{"word_perplexity", std::exp(-logs / words), std::nullopt},
          {"byte_perplexity", std::exp(-logs / bytes), std::nullopt},
          {"bits_per_byte", -logs / bytes / std::numbers::ln2, std::nullopt}};
}

double brier_score(std::span<const MultipleChoiceScore> documents) {
  return mean(values_of(documents, [](const MultipleChoiceScore& score) {
    double sum = 0;
    for (std::size_t i = 0; i < score.probabilities.size(); ++i) {
      const bool right = static_cast<std::int64_t>(i) == score.gold.at(0);
      const double distance = score.probabilities[i] - (right ? 1.0 : 0.0);
      sum += distance * distance;
    }
    return sum;
  }));
}

double f1_score(std::span<const std::int64_t> gold, std::span<const std::int64_t> predicted) {
  KINTSUGI_CHECK(gold.size() == predicted.size(), "{} classes, {} predicted", gold.size(),
                 predicted.size());
  std::int64_t both = 0, either = 0;  // `either` counts a document once or twice
  for (std::size_t i = 0; i < gold.size(); ++i) {
    if (gold[i] < 0 || gold[i] > 1 || predicted[i] < 0 || predicted[i] > 1)
      user_error("F1 is defined for the classes 0 and 1, not for {}",
                 gold[i] < 0 || gold[i] > 1 ? gold[i] : predicted[i]);
    both += gold[i] & predicted[i];
    either += gold[i] + predicted[i];
  }
  return either == 0 ? 0 : 2 * static_cast<double>(both) / static_cast<double>(either);
}

double matthews_correlation(std::span<const std::int64_t> gold,
                            std::span<const std::int64_t> predicted) {
  KINTSUGI_CHECK(gold.size() == predicted.size(), "{} classes, {} predicted", gold.size(),
                 predicted.size());
  std::map<std::int64_t, std::pair<double, double>> counts;  // of each class: gold, predicted
  double right = 0;
  for (std::size_t i = 0; i < gold.size(); ++i) {
    ++counts[gold[i]].first;
    ++counts[predicted[i]].second;
    right += gold[i] == predicted[i] ? 1 : 0;
  }
  const auto n = static_cast<double>(gold.size());
  double both = right * n, of_gold = n * n, of_predicted = n * n;
  for (const auto& [id, count] : counts) {
    both -= count.first * count.second;
    of_gold -= count.first * count.first;
    of_predicted -= count.second * count.second;
  }
  const double scale = of_gold * of_predicted;
  return scale == 0 ? 0 : both / std::sqrt(scale);
}

Metric group_metric(const std::string& name, std::span<const GroupMember> members,
                    bool weight_by_size) {
  check_not_empty(members.size(), "task");
  double sum = 0, weights = 0, squares = 0, documents = 0;
  bool all_known = true;
  for (const GroupMember& member : members) {
    const auto n = static_cast<double>(member.size);
    sum += member.value * (weight_by_size ? n : 1);
    weights += weight_by_size ? n : 1;
    documents += n;
    all_known = all_known && member.stderr_of_mean.has_value();
    const double error = member.stderr_of_mean.value_or(0);
    squares += (n - 1) * error * error * n;
  }
  if (weights <= 0) user_error("the tasks of the group have no documents");
  Metric result{name, sum / weights, std::nullopt};
  if (!all_known) return result;
  const double variance = squares / (documents - static_cast<double>(members.size()));
  result.stderr_of_mean = std::sqrt(variance / documents);
  return result;
}

}  // namespace kintsugi
