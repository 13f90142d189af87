#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "eval/scoring_model.h"

namespace kintsugi {

// A model that is a formula, so that other programs can compute the same scores. Tokens 0 to 255
// are bytes, 256 is BOS and EOS. The state h is 7 at first and (31 h + token + 1) mod 65521 after a
// token. The logit of v is ((17 h + 29 v + 7 (h xor v)) mod 97) / 16 - v / 10000, and 4 more for a
// space or a to z.
class FormulaModel : public ScoringModel {
 public:
  explicit FormulaModel(std::size_t max_length = 2046) : max_length_(max_length) {}

  TokenIds encode(const std::string& text) override {
    TokenIds ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string decode(std::span<const std::int32_t> ids) override {
    std::string text;
    for (const std::int32_t id : ids) text.push_back(static_cast<char>(id));
    return text;
  }
  std::int32_t prefix_token() const override { return 256; }
  std::size_t max_length() const override { return max_length_; }

  std::vector<ContinuationScore> score(std::span<const TokenPair> pairs,
                                       const ScoringProgress& progress) override {
    std::vector<ContinuationScore> scores;
    for (const TokenPair& pair : pairs) {
      std::vector<double> values, largest;
      std::uint32_t state = after(pair.context);
      for (const std::int32_t token : pair.continuation) {
        const std::vector<double>& row = logprobs(state);
        values.push_back(row[static_cast<std::size_t>(token)]);
        largest.push_back(*std::max_element(row.begin(), row.end()));
        state = after({&token, 1}, state);
      }
      scores.push_back(score_continuation(values, largest));
      if (progress) progress(1);
    }
    scored_ += pairs.size();
    return scores;
  }

  std::vector<std::string> generate(std::span<const TextRequest> requests,
                                    const ScoringProgress& progress) override {
    std::vector<std::string> texts;
    for (const TextRequest& request : requests) {
      texts.push_back(generated(request));
      if (progress) progress(1);
    }
    return texts;
  }
  std::size_t scored() const { return scored_; }  // pairs so far

 private:
  static std::uint32_t after(std::span<const std::int32_t> tokens, std::uint32_t state = 7) {
    for (const std::int32_t token : tokens)
      state = (31 * state + static_cast<std::uint32_t>(token) + 1) % 65521;
    return state;
  }
  const std::vector<double>& logprobs(std::uint32_t state) {
    std::vector<double>& row = rows_[state];
    if (!row.empty()) return row;
    double sum = 0;
    for (std::uint32_t v = 0; v < 257; ++v) {
      const bool favoured = v == ' ' || (v >= 'a' && v <= 'z');
      row.push_back(((17 * state + 29 * v + 7 * (state ^ v)) % 97) / 16.0 - v / 10000.0 +
                    (favoured ? 4 : 0));
    }
    const double top = *std::max_element(row.begin(), row.end());
    for (const double logit : row) sum += std::exp(logit - top);
    for (double& logit : row) logit -= top + std::log(sum);
    return row;
  }
  std::string generated(const TextRequest& request) {
    std::string text;
    std::uint32_t state = after(request.prompt);
    for (std::int64_t i = 0; i < request.options.max_gen_toks; ++i) {
      const std::vector<double>& row = logprobs(state);
      const auto token =
          static_cast<std::int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
      if (token == 256) break;
      text.push_back(static_cast<char>(token));
      state = after({&token, 1}, state);
      std::size_t stop = text.npos;
      for (const std::string& until : request.options.until)
        stop = std::min(stop, text.find(until));
      if (stop != text.npos) return text.substr(0, stop);
    }
    return text;
  }

  std::size_t max_length_, scored_ = 0;
  std::map<std::uint32_t, std::vector<double>> rows_;
};

}  // namespace kintsugi
