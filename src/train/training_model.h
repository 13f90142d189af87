#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/communicator.h"
#include "data/sampling/sample_reader.h"
#include "data/tokenizers/tokenizer.h"
#include "eval/requests.h"
#include "eval/scoring_model.h"
#include "train/engine.h"

namespace kintsugi {

// The rows of tokens that score requests: one request in each row or, with document masks, several,
// each as a document of its own. What is left of a row is padding without a loss.
class ScoringRows {
 public:
  // Rows for some of the pairs, which must outlive them. Requests of more than `length` tokens lose
  // the first ones, as in local_input().
  ScoringRows(std::span<const TokenPair> pairs, std::span<const std::size_t> requests,
              std::size_t length, bool packed);

  std::int64_t size() const { return static_cast<std::int64_t>(rows_.size()) - 1; }
  std::size_t requests(std::int64_t first, std::int64_t end) const;  // in these rows
  std::size_t length() const { return length_; }
  void fill(std::int64_t row, SampleRow to) const;
  // The request of a token with a target.
  std::size_t request_at(std::int64_t row, std::size_t token) const;

 private:
  struct Piece {
    std::size_t request, first;  // the index of its first token in the row
  };
  std::span<const Piece> pieces_of(std::int64_t row) const;

  std::span<const TokenPair> pairs_;
  std::size_t length_;
  std::vector<Piece> pieces_;
  std::vector<std::size_t> rows_;  // the first piece of each row, and the number of pieces
};

// The number of tokens that a model reads for a request.
std::size_t tokens_read(const TokenPair& pair);

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

// Lets rank 0 alone evaluate a model that spans several ranks: it reads the tasks and sends the
// tokens of the requests to the other ranks, block by block. They call follow().
class LedModel : public ScoringModel {
 public:
  // Thrown by score() if the evaluation was interrupted.
  struct Interrupted {};

  // `interrupts` is called by all ranks before each block and returns the same on all of them. All
  // objects must outlive this one. A block has at most block_tokens tokens, or one request.
  LedModel(ScoringModel& model, Communicator& group, std::function<bool()> interrupts,
           std::size_t block_tokens);

  TokenIds encode(const std::string& text) override { return model_->encode(text); }
  std::string decode(std::span<const std::int32_t> ids) override { return model_->decode(ids); }
  std::int32_t prefix_token() const override { return model_->prefix_token(); }
  std::size_t max_length() const override { return model_->max_length(); }
  std::vector<ContinuationScore> score(std::span<const TokenPair> pairs,
                                       const ScoringProgress& progress) override;

  // On rank 0, after the last score(), also if an exception was thrown: the others return.
  void finish();
  // On the other ranks. What the model throws on all ranks ends it.
  void follow();

 private:
  std::vector<ContinuationScore> score_block(const std::vector<TokenPair>& block,
                                             const ScoringProgress& progress);

  ScoringModel* model_;
  Communicator* group_;
  std::function<bool()> interrupts_;
  std::size_t block_tokens_;
  bool ended_ = false;  // the others follow no longer
};

}  // namespace kintsugi
