#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/classification_scores.h"
#include "train/trainer/batch_feed.h"

namespace kintsugi {

// The validation of a run: the losses of its held-out samples, and the scores of a classifier.
class Validation {
 public:
  Validation(RunContext& run, BatchFeed& feed, PreferenceReference& reference)
      : run_(run), feed_(feed), reference_(reference) {}

  void validate();  // writes to run.record; all ranks call it
  std::optional<double> last_loss() const { return last_loss_; }

 private:
  struct Score {
    std::vector<double> sums;  // as Engine::evaluate returns them
    ConfusionMatrix matrix;    // of a classifier
    double targets = 0;        // Engine::targets_of
    std::int64_t bytes = 0;    // of the targets with a loss; 0: unknown
    void add(std::span<const double> more);
    void add(const Score& other);
    double loss() const { return sums.front() / loss_divisor(targets); }
    std::optional<double> bits_per_byte() const;
  };
  Score empty_score() const {
    return {.sums = std::vector<double>(run_.engine->scalars().sums()),
            .matrix = ConfusionMatrix(run_.config.model.labels.size())};
  }
  Score score(const ValidationSet& set, SampleBatch& batch);
  StepRecord::Valid valid_record(const std::string& name, const Score& score) const;
  void show_score(const std::string& set, const Score& score) const;
  // Writes the scores by label of a classifier; at the end of the run also to the log. On rank 0.
  void report_labels(const ConfusionMatrix& matrix) const;

  RunContext& run_;
  BatchFeed& feed_;
  PreferenceReference& reference_;
  std::optional<double> last_loss_;
};

}  // namespace kintsugi
