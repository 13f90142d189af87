#include "eval/requests.h"

#include <algorithm>

#include "core/error.h"
#include "eval/text.h"

namespace kintsugi {
namespace {

// Joins two texts, with a delimiter unless either has white space there.
std::string joined(const std::string& left, const std::string& right, std::string_view delimiter) {
  if (left.empty() || right.empty()) return left + right;
  const bool space = ends_with_space(left) || begins_with_space(right);
  return left + std::string(space ? "" : delimiter) + right;
}

}  // namespace

TokenPair encode_pair(std::string_view context, std::string_view continuation, const Encode& encode,
                      std::int32_t prefix_token) {
  if (context.empty()) {
    TokenIds ids = encode(std::string(continuation));
    if (ids.empty()) user_error("nothing to score");
    if (ids.front() == prefix_token) ids.erase(ids.begin());
    return {{prefix_token}, std::move(ids)};
  }
  const std::string_view stripped = strip_right(context);
  if (stripped.empty()) user_error("the context is white space only");
  TokenPair pair{encode(std::string(stripped)), {}};
  const TokenIds whole = encode(std::string(context).append(continuation));
  if (whole.size() > pair.context.size())
    pair.continuation.assign(whole.begin() + static_cast<std::ptrdiff_t>(pair.context.size()),
                             whole.end());
  return pair;
}

LocalInput local_input(const TokenPair& pair, std::size_t max_length) {
  if (pair.continuation.size() > max_length)
    user_error("the continuation alone exceeds max_length");
  TokenIds ids = pair.context;
  ids.insert(ids.end(), pair.continuation.begin(), pair.continuation.end());
  if (ids.size() > max_length + 1)
    ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(max_length + 1));
  if (!ids.empty()) ids.pop_back();
  return {std::move(ids), pair.continuation.size()};
}

std::vector<TokenPair> rolling_windows(const TokenIds& tokens, std::int32_t prefix_token,
                                       std::size_t max_length, std::size_t context_length) {
  if (context_length < 1 || context_length > max_length)
    user_error("a window's context is {} tokens: give 1 to {}, the size of a window",
               context_length, max_length);
  const auto range = [&](std::size_t begin, std::size_t end) {
    return TokenIds(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                    tokens.begin() + static_cast<std::ptrdiff_t>(end));
  };
  std::vector<TokenPair> windows;
  std::size_t done = std::min(max_length, tokens.size());
  if (done > 0) windows.push_back({{prefix_token}, range(0, done)});
  while (done < tokens.size()) {
    const std::size_t end = done + std::min(tokens.size() - done, max_length - context_length + 1);
    windows.push_back({range(end - max_length - 1, done), range(done, end)});
    done = end;
  }
  return windows;
}

std::string few_shot_prompt(const FewShotFormat& format, std::span<const FewShotExample> examples,
                            std::string_view question) {
  const bool prefixed = !format.gen_prefix.empty();
  // What is between a question and the prefix of its answer.
  const auto before_prefix = [&](std::string_view text) -> std::string_view {
    const bool none =
        !prefixed || text.empty() || ends_with_space(text) || begins_with_space(format.gen_prefix);
    return none ? std::string_view() : format.target_delimiter;
  };
  std::string prompt = format.description;
  for (const FewShotExample& example : examples) {
    prompt += example.question;
    prompt += prefixed ? before_prefix(example.question) : format.target_delimiter;
    prompt += joined(format.gen_prefix, example.answer, " ") + format.fewshot_delimiter;
  }
  return prompt.append(question).append(before_prefix(question)).append(format.gen_prefix);
}

}  // namespace kintsugi
