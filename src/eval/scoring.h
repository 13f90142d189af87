#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kintsugi {

// The scores of one document, by the rules of lm-evaluation-harness.

struct ContinuationScore {
  double log_probability = 0;
  bool is_greedy = true;  // each token has the largest probability at its position
};
// From the log-probability of each token and the largest one at its position.
ContinuationScore score_continuation(std::span<const double> log_probabilities,
                                     std::span<const double> largest);

// The right choice: its index, its text, or several indices of which any counts.
using Gold = std::variant<std::int64_t, std::string, std::vector<std::int64_t>>;
// Indices of right choices. An index or a text that no choice has is left out.
std::vector<std::int64_t> gold_indices(const Gold& gold, std::span<const std::string> choices);

struct MultipleChoiceScore {
  double acc = 0;
  double acc_norm = 0;   // log-probabilities divided by the characters of the choice
  double acc_bytes = 0;  // by its bytes in UTF-8
  std::optional<double> acc_mutual_info;
  double exact_match = 0;  // a right choice is greedy
  std::vector<double> probabilities;
  std::vector<std::int64_t> gold;  // see gold_indices
  std::int64_t predicted = 0;      // the choice with the largest log-probability
};
// `scores` are those of the choices, with the delimiter in front; lengths are without it. The first
// of the largest is chosen. `unconditional` has the log-probability of each choice without context;
// empty if it was not scored.
MultipleChoiceScore score_multiple_choice(std::span<const std::string> choices,
                                          std::span<const ContinuationScore> scores,
                                          const Gold& gold,
                                          std::span<const double> unconditional = {});

// A text that was scored as a whole.
struct RollingScore {
  double log_probability = 0;
  std::size_t words = 0, bytes = 0;
};
RollingScore score_rolling(std::string_view text, std::span<const double> window_log_probabilities);

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
