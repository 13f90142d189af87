#include "eval/aggregation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <utility>

#include "core/error.h"
#include "core/statistics.h"

namespace kintsugi {
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
