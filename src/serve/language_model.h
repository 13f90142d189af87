#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "model/whole_model.h"
#include "serve/sampling.h"

namespace kintsugi {

// Why a generation ended: at the model's end-of-text token, after max_tokens, or by on_token.
enum class Finish : std::uint8_t { EndOfText, Length, Stopped };

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

  std::vector<SampledToken> score(std::span<const std::int32_t> tokens, std::int64_t from,
                                  std::int64_t top);

  // UserError if the model cannot generate max_tokens after `prompt`.
  static void check_prompt(const ModelConfig& config, std::span<const std::int32_t> prompt,
                           std::int64_t max_tokens);

  // Generates up to max_tokens after `prompt`. Ends early at the model's end-of-text token, for
  // which on_token is not called, or when on_token returns false.
  Finish generate(std::span<const std::int32_t> prompt, std::int64_t max_tokens,
                  const SamplingOptions& options,
                  const std::function<bool(const SampledToken&)>& on_token);

 private:
  static void check_tokens(const ModelConfig& config, std::span<const std::int32_t> tokens,
                           std::int64_t length);

  Backend& backend_;
  ModelConfig config_;
  DType precision_;
  ParameterSet set_;
  Arena arena_;
  ParameterStore store_;
};

}  // namespace kintsugi
