#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/sampling/batch_loader.h"
#include "train/trainer/preference_reference.h"
#include "train/trainer/run_context.h"

namespace kintsugi {

// The batches of the next steps, which are read ahead.
class BatchFeed {
 public:
  BatchFeed(RunContext& run, PreferenceReference& reference) : run_(run), reference_(reference) {}

  void open();  // for the steps after run.state
  void close();
  // Loads the batch of `step`, if the run has such a step, and returns its number of targets on
  // this rank. Errors are not thrown here but by that step, so that the current step can still be
  // saved.
  double load(std::int64_t step, Trace* trace);
  TokenBatch tokens();  // of the batch that was loaded; throws the error of load()
  void release();       // it is no longer needed: reading goes on

  // The weights of the targets by their labels; empty without objective.class_weights. Valid until
  // the next call.
  std::span<const float> target_weights(std::span<const std::int32_t> targets);

  // Rank 0 compares the content of the data with that of earlier attempts while the run trains.
  void check_content(std::unique_ptr<ContentCheck> check) { content_check_ = std::move(check); }
  void refuse_other_data(std::int64_t step) const;
  void close_content_check();  // all ranks call it

 private:
  RunContext& run_;
  PreferenceReference& reference_;
  std::unique_ptr<BatchLoader> loader_;
  const SampleBatch* batch_ = nullptr;  // once it is loaded
  std::vector<float> target_weights_;
  std::unique_ptr<ContentCheck> content_check_;  // on rank 0, while the run trains
};

}  // namespace kintsugi
