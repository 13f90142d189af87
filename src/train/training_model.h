#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "eval/scoring_model.h"
#include "train/engine.h"
#include "train/scoring_rows.h"

namespace kintsugi {

// Converts the texts of tasks to tokens. It keeps the tokens, because every evaluation of a run has
// the same texts.
class TaskTokenizer {
 public:
  TaskTokenizer(const Tokenizer& tokenizer, const ModelConfig& model);

  // UserError for a token outside the model's vocabulary.
  const TokenIds& encode(const std::string& text);
  std::string decode(std::span<const std::int32_t> ids) const;
  // As an evaluation of a checkpoint finds it in its files.
  std::int32_t prefix_token() const { return prefix_token_; }

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  std::int64_t vocab_size_;
  std::int32_t prefix_token_;
  std::unordered_map<std::string, TokenIds> known_;
};

// The lengths of rows that an engine computes outside of steps, ascending: few, because the kernels
// of a GPU may be prepared for each.
std::vector<std::size_t> row_lengths(const Engine& engine);

// The score of a request is not finite.
class ScoreNotFinite : public Failure {
 public:
  using Failure::Failure;
};

// The model of a run as an evaluation sees it: requests are scored by the forward of the training
// engine, in its layout and its memory. Requests share rows if the run has document masks;
// otherwise short ones are scored in rows that are shorter than those of the training.
class TrainingModel : public ScoringModel {
 public:
  // Only ranks that encode texts need a tokenizer.
  TrainingModel(Engine& engine, TaskTokenizer* tokenizer)
      : engine_(&engine), tokenizer_(tokenizer) {}

  TokenIds encode(const std::string& text) override { return tokenizer_->encode(text); }
  std::string decode(std::span<const std::int32_t> ids) override { return tokenizer_->decode(ids); }
  std::int32_t prefix_token() const override { return tokenizer_->prefix_token(); }
  std::size_t max_length() const override {
    return static_cast<std::size_t>(engine_->options().length);
  }
  // All ranks throw ScoreNotFinite together.
  std::vector<ContinuationScore> score(std::span<const TokenPair> pairs,
                                       const ScoringProgress& progress) override;

 private:
  struct Sums;
  void add_rows(const ScoringRows& rows, Sums& sums, const ScoringProgress& progress);

  Engine* engine_;
  TaskTokenizer* tokenizer_;
};

}  // namespace kintsugi
