#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "model/config.h"
#include "optim/loss_scaler.h"
#include "optim/skip_step.h"
#include "train/checkpoint/branches.h"
#include "train/engine.h"

namespace kintsugi {

// A checkpoint is a Hugging Face model (config.json, generation_config.json, tokenizer.json,
// sharded safetensors with public names) with the trainer's state in trainer.json. With train.ema,
// its subdirectory ema is a second model: the average of the weights. The optimizer's tensors are
// in a second directory (folder.h). Each of the two has the hashes of its files in checksums.json.
// Tensors are stored whole and once, so a checkpoint does not depend on the layout.

struct TrainerState {
  std::int64_t step = 0;     // finished steps
  std::int64_t tokens = 0;   // trained so far
  std::int64_t samples = 0;  // consumed so far: the position in the data order
  std::uint64_t seed = 0;
  std::string data;  // fingerprint of the data and the sample order
  LossScaler::State loss_scale;
  std::int64_t skipped = 0;       // the last consecutive steps without a finite loss and norm
  std::int64_t outliers = 0;      // the last consecutive outliers: RunHealth::outliers
  OutlierHistory::State history;  // with optimizer.skip_step
  bool operator==(const TrainerState&) const = default;
};

struct CheckpointOptions {
  std::vector<Tokenizer::File> files = {};  // text files for the model directory; rank 0's are used
  std::int64_t keep = 2;                    // older checkpoints are removed; 0 keeps all
  std::string config = {};               // the run's configuration as YAML, stored with the state
  std::vector<Ancestor> ancestors = {};  // of the new checkpoint; on rank 0
  std::uint64_t max_shard_bytes = 5'000'000'000;
};

// Writes checkpoints/step-XXXXXXXX and its state under temporary names, syncs, renames, and only
// then moves `latest`. If anything fails, it removes the temporary directories, keeps the existing
// checkpoints and throws Failure; Diverged if weights are not finite. Returns the model directory.
std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints, Engine& engine,
                                      const TrainerState& state, const CheckpointOptions& options);

// Loads weights, optimizer and state into a prepared engine. All ranks call it. Every file is
// checked against its hash while it is read. Throws UserError if one is damaged or missing, or if
// the model is another one; the engine's content is then undefined. If the precision differs from
// that of the checkpoint, weights are loaded from its master weights.
TrainerState load_checkpoint(const std::filesystem::path& checkpoint, Engine& engine);

// These read a checkpoint's properties without loading it.
TrainerState saved_state(const std::filesystem::path& model);
DType saved_precision(const std::filesystem::path& model);
// The run's configuration at the time of the save, as YAML; empty if it is not stored.
std::string saved_config(const std::filesystem::path& model);

}  // namespace kintsugi
