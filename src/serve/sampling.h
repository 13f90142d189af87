#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kintsugi {

// How the next token is chosen. Applied in this order: repetition penalty, temperature, top-k,
// top-p, min-p.
struct SamplingOptions {
  double temperature = 1.0;  // 0: always the most likely token
  std::int64_t top_k = 0;    // 0: all
  double top_p = 1.0;        // the fewest tokens with this total probability
  double min_p = 0.0;        // only tokens with this fraction of the largest probability
  // Of tokens in the prompt or the text so far: positive logits are divided by it, negative ones
  // multiplied (CTRL, Keskar et al. 2019).
  double repetition_penalty = 1.0;
  std::uint64_t seed = 0;
  // How many of the most likely tokens are reported with log-probabilities, besides the chosen one;
  // -1: no log-probabilities.
  std::int64_t logprobs = -1;
};

struct TokenLogprob {
  std::int32_t id = 0;
  double logprob = 0;
  bool operator==(const TokenLogprob&) const = default;
};

// A chosen token. Log-probabilities are the model's own: sampling options do not change them.
struct SampledToken {
  std::int32_t id = 0;
  std::optional<double> logprob = {};
  std::vector<TokenLogprob> top = {};  // the most likely first
};

// Samples a token from logits. `position` numbers the draw; `seen` are the tokens for the
// repetition penalty. The same arguments give the same token. Throws Failure if a logit is NaN or
// the largest is infinite.
std::int32_t choose_token(std::span<const double> logits, const SamplingOptions& options,
                          std::uint64_t position, std::span<const std::int32_t> seen = {});

// The same from some of the most likely tokens, in order, if that is enough: with temperature 0 one
// of them, otherwise as many as top_k. No repetition penalty.
struct LikelyToken {
  std::int32_t id = 0;
  double logit = 0;
};
std::int32_t choose_token(std::span<const LikelyToken> likely, const SamplingOptions& options,
                          std::uint64_t position);

// Throws the Failure for a model whose result `what` is not finite.
[[noreturn]] void not_finite(const std::string& what);

}  // namespace kintsugi
