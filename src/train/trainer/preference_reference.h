#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/reference.h"
#include "train/trainer/run_context.h"

namespace kintsugi {

// The preference pairs of a run (objective dpo): the log-probabilities of the reference model,
// which are read from files or computed at the start of the run, and the pairs of a batch.
class PreferenceReference {
 public:
  explicit PreferenceReference(RunContext& run) : run_(run) {}

  // Before the weights are loaded: reads the log-probabilities of the reference model. If some are
  // missing in a run that continues, loads the reference model and computes them.
  void open(const std::optional<RunStart>& start);
  void complete(Engine& initial);                                     // computes the missing ones
  void write_record() const;                                          // RUN/reference.json
  std::span<const TokenSequence> pairs_of(const SampleBatch& batch);  // valid until the next call

 private:
  void find_model(const std::optional<RunStart>& start);
  void read();

  RunContext& run_;
  std::string model_, weights_;  // the directory and weights_fingerprint() of the reference model
  ReferenceTable table_;
  struct Missing {
    const TokenShard* shard;
    ReferencePaths paths;
  };
  std::vector<Missing> missing_;
  std::vector<TokenSequence> pairs_;  // of the batch that was used last
};

}  // namespace kintsugi
