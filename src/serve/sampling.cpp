#include "serve/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/philox.h"

namespace kintsugi {
namespace {

std::size_t at(std::int32_t token) { return static_cast<std::size_t>(token); }

// NaN has no order: sorting it is undefined behaviour.
void check_logits(std::span<const double> logits) {
  double largest = -std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) not_finite(fmt::format("the logit of token {} is NaN", i));
    largest = std::max(largest, logits[i]);
  }
  if (!std::isfinite(largest)) not_finite(fmt::format("the largest logit is {}", largest));
}

std::vector<double> penalized(std::span<const double> logits, double penalty,
                              std::span<const std::int32_t> seen) {
  std::vector<double> result(logits.begin(), logits.end());
  for (const std::int32_t token : seen) {
    const double logit = logits[at(token)];  // the original: a token counts once
    result[at(token)] = logit < 0 ? logit * penalty : logit / penalty;
  }
  return result;
}

// The likelier token first; of equals the one with the smaller id.
auto by_logit(std::span<const double> logits) {
  return [logits](std::int32_t a, std::int32_t b) {
    const double la = logits[at(a)], lb = logits[at(b)];
    return la != lb ? la > lb : a < b;
  };
}

std::vector<std::int32_t> all_tokens(std::span<const double> logits) {
  std::vector<std::int32_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

// Keeps the fewest tokens whose probability reaches top_p, and of these the ones that min_p allows.
// Uses a heap, because few tokens of a large vocabulary are kept.
template <class Ratio>  // double(token): its probability / the largest probability
void keep_nucleus(std::span<const double> logits, const SamplingOptions& options, Ratio&& ratio,
                  std::vector<std::int32_t>& tokens) {
  double total = 0, sum = 0;
  for (const std::int32_t token : tokens) total += ratio(token);
  const auto less = [before = by_logit(logits)](std::int32_t a, std::int32_t b) {
    return before(b, a);
  };
  std::make_heap(tokens.begin(), tokens.end(), less);
  std::vector<std::int32_t> kept;
  for (auto end = tokens.end(); end != tokens.begin(); --end) {
    std::pop_heap(tokens.begin(), end, less);
    const std::int32_t token = *(end - 1);
    if (!kept.empty() && ratio(token) < options.min_p) break;
    kept.push_back(token);
    if ((sum += ratio(token)) >= options.top_p * total) break;
  }
  tokens = std::move(kept);
}

// Draws one of the tokens. `ratio` of a token is its probability / the largest probability.
template <class Ratio>
std::int32_t draw_among(const std::vector<std::int32_t>& tokens, Ratio&& ratio, std::uint64_t seed,
                        std::uint64_t position) {
  std::vector<double> cumulative;
  double total = 0;
  for (const std::int32_t token : tokens) cumulative.push_back(total += ratio(token));
  const Philox::Block words = Philox::draw(derive_key(seed, 0x5A3B1E), position);
  const double draw =
      (static_cast<double>(words[0]) * 0x1.0p-32 + static_cast<double>(words[1]) * 0x1.0p-64) *
      total;
  // The last token that can be drawn; those after it have a probability of 0.
  const auto last = std::lower_bound(cumulative.begin(), cumulative.end(), total);
  const auto chosen = std::upper_bound(cumulative.begin(), last, draw);
  return tokens[static_cast<std::size_t>(chosen - cumulative.begin())];
}

std::int32_t draw_token(std::span<const double> logits, const SamplingOptions& options,
                        std::uint64_t position) {
  std::vector<std::int32_t> tokens = all_tokens(logits);
  if (options.temperature <= 0)
    return *std::min_element(tokens.begin(), tokens.end(), by_logit(logits));
  if (options.top_k > 0 && options.top_k < std::ssize(tokens)) {
    std::partial_sort(tokens.begin(), tokens.begin() + options.top_k, tokens.end(),
                      by_logit(logits));
    tokens.resize(static_cast<std::size_t>(options.top_k));
  }
  const double largest = *std::max_element(logits.begin(), logits.end());
  const auto ratio = [&](std::int32_t token) {
    return std::exp((logits[at(token)] - largest) / options.temperature);
  };
  if (options.top_p < 1 || options.min_p > 0) keep_nucleus(logits, options, ratio, tokens);
  return draw_among(tokens, ratio, options.seed, position);
}

}  // namespace

void not_finite(const std::string& what) {
  failure(
      "{}: the model's weights are not finite or too large for this precision; use an earlier "
      "checkpoint or --precision fp32",
      what);
}

std::int32_t choose_token(std::span<const double> logits, const SamplingOptions& options,
                          std::uint64_t position, std::span<const std::int32_t> seen) {
  check_logits(logits);
  if (options.repetition_penalty == 1.0 || seen.empty())
    return draw_token(logits, options, position);
  const std::vector<double> changed = penalized(logits, options.repetition_penalty, seen);
  check_logits(changed);
  return draw_token(changed, options, position);
}

std::int32_t choose_token(std::span<const LikelyToken> likely, const SamplingOptions& options,
                          std::uint64_t position) {
  // The tokens are numbered by their order here, which is that of draw_token().
  std::vector<double> logits;
  for (const LikelyToken& token : likely) logits.push_back(token.logit);
  check_logits(logits);
  return likely[at(draw_token(logits, options, position))].id;
}

}  // namespace kintsugi
