#include "train/config/model.h"

#include <algorithm>

#include "core/error.h"
#include "data/tokenizers/tokenizer.h"

namespace kintsugi {
namespace {

constexpr std::int64_t kVocabularyMultiple = 128;  // for fast matmuls

void fit_vocabulary(RunConfig& config, const Tokenizer& tokenizer) {
  const std::int64_t needed = tokenizer.vocab_size();
  std::int64_t& size = config.model.vocab_size;
  if (size >= needed) return;
  const std::int64_t rounded =
      (needed + kVocabularyMultiple - 1) / kVocabularyMultiple * kVocabularyMultiple;
  if (config.vocab_size_given)
    user_error(
        "model.vocab_size is {}, but the tokenizer {} ({}) has {} tokens: raise it to {}, or leave "
        "it out",
        size, config.data.tokenizer, tokenizer.description(), needed, rounded);
  size = rounded;
  config.model.complete_and_check();
}

// So that a checkpoint's config.json agrees with its tokenizer.json.
void adopt_end_of_document(ModelConfig& model, const Tokenizer& tokenizer) {
  const auto end = tokenizer.end_of_document();
  if (!end || model.eos_token == *end) return;
  model.eos_token = *end;
  if (model.bos_token >= 0) model.bos_token = *end;
}

}  // namespace

void resolve_tokenizer(RunConfig& config) {
  if (config.loaded.tokenizer) return;
  std::shared_ptr<const Tokenizer> tokenizer;
  try {
    tokenizer = load_tokenizer(config.data.tokenizer);
  } catch (const UserError& error) {
    user_error("data.tokenizer: {}", error.what());
  }
  const auto adopt = [&](RunConfig& one) {
    fit_vocabulary(one, *tokenizer);
    adopt_end_of_document(one.model, *tokenizer);
    one.loaded.tokenizer = tokenizer;
  };
  adopt(config);
  for (RunConfig& stage : config.stages) adopt(stage);
}

void set_trained_positions(RunConfig& config) {
  ModelConfig& model = config.model;
  if (model.positions() == PositionKind::Learned) return;
  const std::int64_t length = config.data.sequence_length;
  const bool init = !config.model_init.empty();
  model.max_positions =
      config.max_positions_given || init ? std::max(model.max_positions, length) : length;
  if (!config.rope_scaling_given && !init && model.rope_scaling &&
      length <= model.rope_scaling->original_max_positions)
    model.rope_scaling.reset();
}

void continue_rope_scaling(RunConfig& config, const ModelConfig& model) {
  if (!config.rope_scaling_given && config.model.family == model.family)
    config.model.rope_scaling = model.rope_scaling;
}

}  // namespace kintsugi
