#include "train/config/model.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "data/chat/prompt_encoder.h"
#include "data/stores/token_store.h"
#include "data/tokenizers/tokenizer.h"
#include "model/lora.h"

namespace kintsugi {
namespace {

constexpr std::int64_t kVocabularyMultiple = 128;  // for fast matmuls

void fit_vocabulary(StageConfig& config, const Tokenizer& tokenizer) {
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

std::vector<std::string> labels_of_store(const std::string& path) {
  const std::vector<TokenShard> shards = open_token_store(path);
  std::vector<std::string> labels;
  for (const auto& info : read_store_infos(shards)) {
    if (!info || info->labels.empty())
      user_error(
          "{} has no labels, which objective classification needs: make the store with `kintsugi "
          "data prepare-chat --kind classification`",
          path);
    if (!labels.empty() && labels != info->labels)
      user_error("the shards of {} have different labels: prepare them as one store", path);
    labels = info->labels;
  }
  return labels;
}

// The token with which transformers pads batches, or -1.
std::int64_t pad_token_of(const Tokenizer& tokenizer, const ModelConfig& model) {
  const std::string name = read_prompt_settings(tokenizer.files(model.max_positions)).pad;
  const auto id = name.empty() ? std::nullopt : tokenizer.token_id(name);
  return id && *id < model.vocab_size ? *id : -1;
}

// The labels of the data are those of the model.
void adopt_labels(StageConfig& config, const Tokenizer& tokenizer) {
  if (config.objective.kind != ObjectiveKind::Classification) return;
  ModelConfig& model = config.model;
  std::string first = config.model_init.empty() ? "the model" : "the classifier in model.init";
  const auto add = [&](const std::string& path) {
    const std::vector<std::string> labels = labels_of_store(path);
    if (model.labels.empty()) {
      model.labels = labels;
      first = path;
    }
    if (model.labels != labels)
      user_error(
          "{} has the labels {}, but {} has {}: prepare the data with `--labels {}`, or start from "
          "a model without these labels",
          path, fmt::join(labels, ", "), first, fmt::join(model.labels, ", "),
          fmt::join(model.labels, ","));
  };
  for (const DataSource& source : config.data.train) add(source.path);
  for (const ValidSource& source : config.data.valid) add(source.path);
  if (model.pad_token < 0) model.pad_token = pad_token_of(tokenizer, model);
  model.complete_and_check();
  const std::size_t weights = config.objective.class_weights.numbers.size();
  if (weights > 0 && weights != model.labels.size())
    user_error("objective.class_weights has {} numbers, but the data has {} labels: {}", weights,
               model.labels.size(), fmt::join(model.labels, ", "));
  if (!model.freeze.empty() || model.lora.on()) check_trained(model);
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
  const auto adopt = [&](StageConfig& one) {
    fit_vocabulary(one, *tokenizer);
    adopt_end_of_document(one.model, *tokenizer);
    adopt_labels(one, *tokenizer);
    one.loaded.tokenizer = tokenizer;
  };
  adopt(config);
  for (StageConfig& stage : config.stages) adopt(stage);
}

void set_trained_positions(StageConfig& config) {
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
