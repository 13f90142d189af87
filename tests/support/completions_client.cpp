#include "support/completions_client.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace kintsugi {
namespace {

using ReplyJson = nlohmann::json;

// Returns json[key] as an array.
const ReplyJson& list_at(const ReplyJson& json, const char* key, const std::string& source) {
  if (!json.is_object() || !json.contains(key) || !json[key].is_array())
    user_error("{} has no list '{}'", source, key);
  return json[key];
}

double number_in(const ReplyJson& json, std::size_t token, const std::string& source) {
  if (!json.is_number()) user_error("{} has no log-probability of token {}", source, token);
  return json.get<double>();
}

ContinuationScore score_choice(const ReplyJson& choice, std::size_t first,
                               const std::string& source) {
  const auto found = choice.find("logprobs");
  if (found == choice.end()) user_error("{} has no 'logprobs'", source);
  const ReplyJson &values = list_at(*found, "token_logprobs", source),
                  &tops = list_at(*found, "top_logprobs", source);
  if (values.size() != tops.size())
    user_error("{} has {} token_logprobs but {} top_logprobs", source, values.size(), tops.size());
  if (first == 0) user_error("the first token of a prompt has no log-probability");
  ContinuationScore score;
  for (std::size_t i = first; i + 1 < values.size(); ++i) {  // the last token is generated
    const double value = number_in(values[i], i, source);
    if (!tops[i].is_object() || tops[i].empty())
      user_error("{} has no top_logprobs of token {}", source, i);
    double largest = -HUGE_VAL;
    for (const ReplyJson& top : tops[i]) largest = std::max(largest, number_in(top, i, source));
    score.log_probability += value;
    if (value != largest) score.is_greedy = false;
  }
  return score;
}

}  // namespace

ApiInput api_input(const TokenPair& pair, std::size_t max_length) {
  TokenIds ids = pair.context;
  ids.insert(ids.end(), pair.continuation.begin(), pair.continuation.end());
  const std::size_t kept = max_length == 0 ? 0 : max_length - 1;
  const std::size_t dropped = ids.size() > kept ? ids.size() - kept : 0;
  if (dropped >= pair.context.size()) user_error("no context is left");
  ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(dropped));
  return {std::move(ids), pair.context.size() - dropped};
}

std::vector<ContinuationScore> score_completions(std::string_view reply_json,
                                                 std::span<const std::size_t> first_scored,
                                                 const std::string& source) {
  const ReplyJson reply = ReplyJson::parse(reply_json, nullptr, false);
  if (reply.is_discarded()) user_error("{} is not JSON", source);
  const ReplyJson& choices = list_at(reply, "choices", source);
  if (choices.size() != first_scored.size())
    user_error("{} has {} choices for {} prompts", source, choices.size(), first_scored.size());
  std::vector<const ReplyJson*> by_index(choices.size(), nullptr);
  for (const ReplyJson& choice : choices) {
    const ReplyJson index = choice.is_object() ? choice.value("index", ReplyJson()) : ReplyJson();
    if (!index.is_number_unsigned() || index >= choices.size() ||
        by_index[index.get<std::size_t>()])
      user_error("{} has a choice without an index of its own", source);
    by_index[index.get<std::size_t>()] = &choice;
  }
  std::vector<ContinuationScore> scores;
  for (std::size_t i = 0; i < by_index.size(); ++i)
    scores.push_back(score_choice(*by_index[i], first_scored[i], source));
  return scores;
}

}  // namespace kintsugi
