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

// The token that `options` choose from logits; `position` numbers the draw. Pure: the same
// arguments, the same token. Failure where logits are no numbers to choose from: NaN, or infinite
// at the top.
std::int32_t choose_token(std::span<const float> logits, const SamplingOptions& options,
                          std::uint64_t position);

// A model for scoring and generation, from any Hugging Face directory of a supported family.
class LanguageModel {
 public:
  LanguageModel(Backend& backend, const std::filesystem::path& directory, DType precision);

  // Before anything is loaded: UserError, with the figures, unless the weights, and what it takes
  // to score `tokens` of them or to generate up to so many, are free.
  enum class Use { Scoring, Generation };
  static void check_memory(Backend& backend, const std::filesystem::path& directory,
                           DType precision, Use use, std::int64_t tokens);

  const ModelConfig& config() const { return config_; }

  // Log-probability of each token but the first, given those before it. Failure if one is not
  // finite.
  std::vector<double> log_probabilities(std::span<const std::int32_t> tokens);

  // Continues `prompt` by up to max_tokens, ending early at the model's end-of-text token or when
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
