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

// Reads the reply of a completions server to a request with `echo`, `logprobs` and one generated
// token. `first_scored` has the index of the first token to score for each prompt. UserError if the
// reply has another form; `source` names it in messages.
std::vector<ContinuationScore> score_completions(std::string_view reply_json,
                                                 std::span<const std::size_t> first_scored,
                                                 const std::string& source);

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

}  // namespace kintsugi
