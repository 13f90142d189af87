#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// How lm-evaluation-harness makes token ids of texts. What cannot be scored is a UserError.

using TokenIds = std::vector<std::int32_t>;
using Encode = std::function<TokenIds(const std::string& text)>;  // adds no special tokens

struct TokenPair {
  TokenIds context, continuation;
};
// White space at the end of the context becomes part of the continuation. The whole is encoded once
// and split at the length of the encoded context. An empty context becomes the prefix token (BOS,
// else EOS), unless the continuation begins with it.
TokenPair encode_pair(std::string_view context, std::string_view continuation, const Encode& encode,
                      std::int32_t prefix_token);

// What a local model reads: at most max_length tokens. The last token of the pair is predicted but
// not read, so the last `scored` positions predict the continuation.
struct LocalInput {
  TokenIds ids;
  std::size_t scored;
};
LocalInput local_input(const TokenPair& pair, std::size_t max_length);

// Disjoint windows in which each token of a text is predicted once. The last window has more
// context: it is filled up to max_length on the left.
std::vector<TokenPair> rolling_windows(const TokenIds& tokens, std::int32_t prefix_token,
                                       std::size_t max_length, std::size_t context_length = 1);

struct FewShotFormat {
  std::string description = "";
  std::string target_delimiter = " ", fewshot_delimiter = "\n\n";
  std::string gen_prefix = "";  // the beginning of each answer, written into the prompt
};
struct FewShotExample {
  std::string question, answer;
};
std::string few_shot_prompt(const FewShotFormat& format, std::span<const FewShotExample> examples,
                            std::string_view question);

}  // namespace kintsugi
