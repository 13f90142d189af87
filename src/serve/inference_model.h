#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "model/stage.h"
#include "serve/inference_engine.h"
#include "serve/step_layout.h"

namespace kintsugi {

// What was read of the logits of one token.
struct ReadLogits {
  std::vector<LikelyToken> largest;  // the largest first
  double log_sum = 0;                // log of the sum of exp
  double chosen = 0;                 // the logit of the target
  std::vector<double> all = {};      // as exact as `largest`, which may have it or not
};

// A model with the caches of many sequences, sharded over the ranks of a tensor group. Rank 0 calls
// compute(); the others call follow().
class InferenceModel {
 public:
  // How many of the largest logits can be read; for more, all are read.
  static constexpr std::int64_t kMostLargest = 32;

  // UserError if there is too little memory, or the ranks cannot share the model.
  InferenceModel(Backend& backend, Communicator& tensor, const std::filesystem::path& directory,
                 const InferenceOptions& options);
  ~InferenceModel();
  InferenceModel(const InferenceModel&) = delete;
  InferenceModel& operator=(const InferenceModel&) = delete;

  const ModelConfig& config() const { return config_; }
  const InferenceOptions& options() const { return options_; }  // without zeros
  std::int64_t pages() const { return pages_; }                 // 0: the model has no attention
  // Whether layers keep a state that every token updates.
  bool is_recurrent() const { return is_recurrent_; }

  // Computes tokens of different sequences, at most options().step_tokens. Returns what was read,
  // by sequence and target.
  std::vector<std::vector<ReadLogits>> compute(const std::vector<StepSequence>& sequences);
  void end();  // lets the other ranks return
  void follow();

 private:
  struct Work;
  struct Inputs;

  void plan();
  void allocate_caches();
  std::vector<std::vector<ReadLogits>> run(const std::vector<StepSequence>& sequences);
  Inputs upload(const StepLayout& layout);
  void forward(const Inputs& inputs);
  // Computes logits of reads [first, first + count) and what is read of them.
  void read(const Inputs& inputs, std::int64_t first, std::int64_t count);
  std::vector<ReadLogits> download(std::int64_t count, std::int64_t largest);
  std::vector<double> download_row(std::int64_t row);

  Backend& backend_;
  Communicator& tensor_;
  LocalCommunicator alone_;
  ModelConfig config_;
  InferenceOptions options_;
  bool is_recurrent_ = false, has_pages_ = false;
  std::int64_t pages_ = 0;
  StepShape shape_;
  ParameterSet set_;
  Arena arena_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<Work> work_;
  std::vector<LayerCache> caches_;
};

}  // namespace kintsugi
