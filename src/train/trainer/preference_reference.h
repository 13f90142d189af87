#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/stores/token_store.h"
#include "train/engine.h"
#include "train/trainer/run_context.h"

namespace kintsugi {

// The log-probabilities of the sequences of preference stores in the model that a run starts from
// (DPO's reference model). They are computed once and stored in a file per shard,
// PREFIX.reference-FINGERPRINT.safetensors: F64 `log_probabilities` (sequences), and in the
// metadata the hash of its bytes.

// The files of a shard's values: beside the shard, and in `directory` if that folder is read-only.
struct ReferencePaths {
  std::filesystem::path beside_store, in_run;
};
// `weights` identifies the reference model: weights_fingerprint().
ReferencePaths reference_paths(const TokenShard& shard, const StoreInfo* info,
                               const std::string& weights, const std::filesystem::path& directory);

// Throws UserError if the file is damaged or of another shard.
std::vector<double> load_reference(const std::filesystem::path& path, std::int64_t sequences);
// Empty if there is no such file. A damaged one is reported as a warning and counts as missing.
std::optional<std::vector<double>> read_reference(const std::filesystem::path& path,
                                                  std::int64_t sequences);
// Writes beside the store; with a warning, in the run directory. Atomic. Throws Failure.
void write_reference(const ReferencePaths& paths, std::span<const double> values);

// A hash of the weights in a model directory, the model's configuration and the precision. Ranks
// share the work of reading; all call it.
std::string weights_fingerprint(Communicator& host, const std::filesystem::path& model,
                                const ModelConfig& config, DType precision);

// Computes the values of a shard with the weights in the engine. All ranks call it and get the
// values; data ranks share the work. `progress` is called with the number of documents done, on all
// ranks. Throws UserError if a document is no pair, does not fit into a row or has no finite
// probability.
using ReferenceProgress = std::function<void(std::int64_t documents)>;
std::vector<double> compute_reference(Engine& engine, const TokenShard& shard,
                                      const ReferenceProgress& progress = {});

// The values of all shards of a run.
class ReferenceTable {
 public:
  void add(const TokenShard& shard, std::vector<double> values) {
    values_[shard.name()] = std::move(values);
  }
  bool has(const TokenShard& shard) const { return values_.contains(shard.name()); }
  double at(const TokenShard& shard, std::int64_t sequence) const;

 private:
  std::map<std::string, std::vector<double>> values_;  // by name: a shard may be opened twice
};

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
