#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/requests.h"
#include "eval/scoring.h"

namespace kintsugi {

// How lm-evaluation-harness scores with a completions server: what it sends and how it reads the
// reply.

// What the HTTP client sends: at most max_length - 1 tokens, because the server generates one more.
struct ApiInput {
  TokenIds ids;
  std::size_t first_scored;  // the index of the first token of the continuation
};
ApiInput api_input(const TokenPair& pair, std::size_t max_length);

// Reads the reply of a completions server to a request with `echo`, `logprobs` and one generated
// token. `first_scored` has the index of the first token to score for each prompt. UserError if the
// reply has another form; `source` names it in messages.
std::vector<ContinuationScore> score_completions(std::string_view reply_json,
                                                 std::span<const std::size_t> first_scored,
                                                 const std::string& source);

}  // namespace kintsugi
