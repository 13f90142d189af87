#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/scoring.h"

namespace kintsugi {

// Metrics over documents and tasks, by the rules of lm-evaluation-harness.

struct Metric {
  std::string name;  // acc, word_perplexity
  double value = 0;
  std::optional<double> stderr_of_mean;  // empty: not defined
};

// The sample standard deviation / sqrt(n); empty for fewer than two values.
std::optional<double> stderr_of_mean(const std::vector<double>& values);
Metric mean_metric(const std::string& name, const std::vector<double>& values);

// acc, acc_norm, acc_bytes, acc_mutual_info (if scored), exact_match; brier_score if each document
// has one right choice and all have the same number of choices.
std::vector<Metric> multiple_choice_metrics(std::span<const MultipleChoiceScore> documents);
// perplexity and acc: of continuations such as a last word.
std::vector<Metric> loglikelihood_metrics(std::span<const ContinuationScore> documents);
// word_perplexity, byte_perplexity and bits_per_byte: sums over all documents are divided.
std::vector<Metric> rolling_metrics(std::span<const RollingScore> documents);

// The mean over documents of the squared distance between probabilities and the right choice.
double brier_score(std::span<const MultipleChoiceScore> documents);
// F1 of the class 1 among the classes 0 and 1; 0 if it neither occurs nor is predicted.
double f1_score(std::span<const std::int64_t> gold, std::span<const std::int64_t> predicted);
// Matthews' correlation coefficient, of any number of classes; 0 if it is not defined.
double matthews_correlation(std::span<const std::int64_t> gold,
                            std::span<const std::int64_t> predicted);

// One metric of one task of a group.
struct GroupMember {
  double value = 0;
  std::optional<double> stderr_of_mean;
  std::int64_t size = 0;  // documents
};
// The mean over tasks. The standard error is pooled with the sizes, also if the mean is not
// weighted; it is empty if a task has none.
Metric group_metric(const std::string& name, std::span<const GroupMember> members,
                    bool weight_by_size);

}  // namespace kintsugi
