#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/tokenizers/tokenizer.h"
#include "eval/requests.h"
#include "train/config/config.h"
#include "train/engine.h"

namespace kintsugi {

// The prompts of train.samples as tokens, with the beginning-of-text token that a checkpoint's
// tokenizer adds: `kintsugi generate` begins alike.
class SamplePrompts {
 public:
  // UserError for a prompt that is longer than data.sequence_length, or has tokens that the model
  // does not have.
  SamplePrompts(const RunConfig& config, const Tokenizer& tokenizer);

  const std::vector<TokenIds>& ids() const { return ids_; }
  // The text that the tokens append to a prompt.
  std::string text(std::size_t prompt, std::span<const std::int32_t> tokens) const;

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<TokenIds> ids_;
};

class LogitsNotFinite : public Failure {
 public:
  using Failure::Failure;
};

struct GreedyOptions {
  std::int64_t tokens = 1;      // at most, for each prompt; also limited by the engine's length
  std::int64_t end_token = -1;  // ends a text and is not part of it
  // Called by all ranks before each forward: whether to end early, the same on all of them.
  std::function<bool()> interrupts = {};
};
// Continues prompts with the most likely tokens, with the forward of the training engine in its
// layout and memory. All ranks call it with the same prompts and have the same result. Nothing if
// it was interrupted. All ranks throw LogitsNotFinite together.
std::optional<std::vector<TokenIds>> continue_greedily(Engine& engine,
                                                       const std::vector<TokenIds>& prompts,
                                                       const GreedyOptions& options);

}  // namespace kintsugi
