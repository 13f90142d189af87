#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "model/config.h"
#include "optim/loss_scaler.h"
#include "train/checkpoint/branches.h"
#include "train/engine.h"

namespace kintsugi {

// A checkpoint is a Hugging Face model (config.json, generation_config.json, tokenizer.json,
// sharded safetensors under public names) with the trainer's state in trainer.json, and beside it,
// in a directory of its own, the optimizer's tensors: see checkpoint_folder.h. Each of the two has
// a hash of every file in checksums.json. Tensors are whole and stored once: nothing in it depends
// on how the run was laid out.

struct TrainerState {
  std::int64_t step = 0;     // finished steps
  std::int64_t tokens = 0;   // trained so far
  std::int64_t samples = 0;  // of the data order, consumed so far
  std::uint64_t seed = 0;
  std::string data;  // fingerprint of what the samples are drawn from
  LossScaler::State loss_scale;
  std::int64_t skipped = 0;  // steps in a row, until now, without a finite loss and norm
  bool operator==(const TrainerState&) const = default;
};

struct CheckpointOptions {
  std::vector<Tokenizer::File> files = {};  // texts beside the weights; those of rank 0 count
  std::int64_t keep = 2;                    // older ones are removed; 0 keeps all
  std::string config = {};                  // of the run, as YAML: stored with the state
  std::vector<Ancestor> ancestors = {};     // on rank 0: what the run descends from
  std::uint64_t max_shard_bytes = 5'000'000'000;
};

// Writes checkpoints/step-XXXXXXXX and its state under temporary names, syncs, renames, and only
// then moves `latest`. If anything fails, the temporary directories are removed, what was there
// before stays, and Failure is thrown: Diverged for weights that are not finite. Returns the model
// directory.
std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints, Engine& engine,
                                      const TrainerState& state, const CheckpointOptions& options);

// Weights, optimizer and state into a prepared engine; all ranks together. Every file is checked
// against its hash first; UserError if one is damaged or missing, or if the model is another one.
// In another precision than it was saved in, the run goes on from its master weights.
TrainerState load_checkpoint(const std::filesystem::path& checkpoint, Engine& engine);

// What a checkpoint says of itself, without loading it.
TrainerState saved_state(const std::filesystem::path& model);
DType saved_precision(const std::filesystem::path& model);
// The run's configuration when it was saved, as YAML; empty if it is not stored.
std::string saved_config(const std::filesystem::path& model);

}  // namespace kintsugi
