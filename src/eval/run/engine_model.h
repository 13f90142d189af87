#pragma once

#include "data/tokenizers/tokenizer.h"
#include "eval/scoring_model.h"
#include "serve/generation.h"
#include "serve/inference_engine.h"

namespace kintsugi {

// The context of texts without context: the first of these that is known. A tokenizer of bytes has
// none of them: then a line end is used.
std::int32_t prefix_token_of(const Tokenizer& tokenizer, const std::string& bos,
                             const ModelConfig& config);

// A trained model in an inference engine.
class EngineModel : public ScoringModel {
 public:
  // Both must outlive the model. The engine must not have other requests.
  EngineModel(InferenceEngine& engine, Tokenizer& tokenizer, std::int32_t prefix_token)
      : engine_(engine), tokenizer_(tokenizer), prefix_token_(prefix_token) {}

  TokenIds encode(const std::string& text) override;
  std::string decode(std::span<const std::int32_t> ids) override;
  std::int32_t prefix_token() const override { return prefix_token_; }
  std::size_t max_length() const override;
  std::vector<ContinuationScore> score(std::span<const TokenPair> pairs,
                                       const ScoringProgress& progress) override;
  std::vector<std::string> generate(std::span<const TextRequest> requests,
                                    const ScoringProgress& progress) override;

 private:
  InferenceEngine& engine_;
  Tokenizer& tokenizer_;
  std::int32_t prefix_token_;
};

}  // namespace kintsugi
