#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "model/whole_model.h"

namespace kintsugi {

struct SamplingOptions {
  double temperature = 1.0;  // 0: always the most likely token
  std::int64_t top_k = 0;    // 0: all
  double top_p = 1.0;
  std::uint64_t seed = 0;
};

// Samples a token from logits. `position` numbers the draw; the same arguments give the same token.
// Throws Failure if a logit is NaN or the largest is infinite.
std::int32_t choose_token(std::span<const float> logits, const SamplingOptions& options,
                          std::uint64_t position);

// A model for scoring and generation, from a Hugging Face directory of a supported family.
class LanguageModel {
 public:
  LanguageModel(Backend& backend, const std::filesystem::path& directory, DType precision);

  // Called before loading. UserError with the sizes if there is too little free memory for the
  // weights and for scoring `tokens` tokens or generating up to `tokens` tokens.
  enum class Use { Scoring, Generation };
  static void check_memory(Backend& backend, const std::filesystem::path& directory,
                           DType precision, Use use, std::int64_t tokens);

  const ModelConfig& config() const { return config_; }

  // The log-probability of each token except the first, given the tokens before it. Throws Failure
  // if one is not finite.
  std::vector<double> log_probabilities(std::span<const std::int32_t> tokens);

  // Generates up to max_tokens after `prompt`. Ends early at the model's end-of-text token or when
  // on_token returns false.
  void generate(std::span<const std::int32_t> prompt, std::int64_t max_tokens,
                const SamplingOptions& options, const std::function<bool(std::int32_t)>& on_token);

 private:
  void check_tokens(std::span<const std::int32_t> tokens, std::int64_t length) const;

  Backend& backend_;
  ModelConfig config_;
  DType precision_;
  ParameterSet set_;
  Arena arena_;
  ParameterStore store_;
};

}  // namespace kintsugi
