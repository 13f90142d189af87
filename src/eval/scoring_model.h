#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "eval/requests.h"
#include "eval/scoring.h"
#include "eval/task.h"

namespace kintsugi {

// A text to generate.
struct TextRequest {
  TokenIds prompt;
  GenerationOptions options;
  std::uint64_t seed = 0;  // if options.do_sample; different for each request
};

// Called with the number of requests that have been computed since the last call.
using ScoringProgress = std::function<void(std::size_t requests)>;

// What an evaluation needs of a model. A model that spans several ranks is called by all of them
// with the same arguments, and returns the same results on all.
class ScoringModel {
 public:
  virtual ~ScoringModel() = default;

  virtual TokenIds encode(const std::string& text) = 0;  // adds no special tokens
  // The text of documents that are stored as tokens. UserError if the model has no tokenizer.
  virtual std::string decode(std::span<const std::int32_t> /*ids*/) {
    user_error("this model has no tokenizer: it cannot score documents that are stored as tokens");
  }
  // The context of a text without context: BOS, else EOS. UserError if there is neither.
  virtual std::int32_t prefix_token() const = 0;
  // The most tokens that the model reads at once; it predicts one more.
  virtual std::size_t max_length() const = 0;

  // The score of each continuation. A pair has at least one token of context, and at most
  // max_length() + 1 tokens in all. Pairs with a common beginning follow each other, so that a
  // model can keep what it has computed for it. Failure if a result is not finite.
  virtual std::vector<ContinuationScore> score(std::span<const TokenPair> pairs,
                                               const ScoringProgress& progress) = 0;
  // The generated texts, without the strings that end them. A prompt and its longest text have at
  // most max_length() tokens. UserError if the model cannot generate.
  virtual std::vector<std::string> generate(std::span<const TextRequest> /*requests*/,
                                            const ScoringProgress& /*progress*/) {
    user_error("this model cannot generate texts: tasks of the type generate_until cannot be run");
  }
};

}  // namespace kintsugi
