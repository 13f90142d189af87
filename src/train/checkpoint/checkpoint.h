#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/progress.h"
#include "data/sampling/batch_schedule.h"
#include "data/tokenizers/tokenizer.h"
#include "model/config.h"
#include "optim/skip_step.h"
#include "train/checkpoint/branches.h"
#include "train/checkpoint/files.h"
#include "train/engine.h"
#include "train/health.h"

namespace kintsugi {

// A checkpoint is a Hugging Face model (config.json, generation_config.json, tokenizer.json,
// sharded safetensors with public names) with the trainer's state in trainer.json. With train.ema,
// its subdirectory ema is a second model: the average of the weights. The optimizer's tensors are
// in a second directory (folder.h). If adapters are trained, both models are PEFT directories
// instead (adapter_config.json, adapter_model.safetensors), without the weights of the base. Each
// of the two has the hashes of its files in checksums.json. Tensors are stored whole and once, so a
// checkpoint does not depend on the layout.

// A finished part of the training that led to a checkpoint: a stage of a run, up to the step at
// which another stage or another run (run.from) continued. A run without `stages:` has one stage.
struct PastStage {
  std::string run = {};   // the name of its directory
  std::string name = {};  // of the stage; empty: the run has no `stages:`
  std::int64_t first_step = 0, last_step = 0;
  std::int64_t tokens = 0, samples = 0;      // trained in it
  std::string data = {};                     // fingerprint of the data and the sample order
  std::vector<PastBatch> batches = {};       // before the one in its configuration
  std::vector<SkippedSamples> skipped = {};  // by rewinds
  std::string config = {};                   // as YAML, of this stage alone; empty: unknown
  bool operator==(const PastStage&) const = default;
};

struct TrainerState {
  std::int64_t step = 0;         // finished steps, of all stages and of the runs before this one
  std::int64_t tokens = 0;       // trained so far, by all of them
  std::int64_t samples = 0;      // trained in this stage; data_position() is that in its data order
  std::int64_t stage = 0;        // its number in the run, from 0
  std::int64_t stage_start = 0;  // steps before this stage
  std::vector<PastBatch> batches = {};  // of this stage, before the current one; oldest first
  std::vector<PastStage> history = {};  // the stages before, oldest first
  std::uint64_t seed = 0;
  std::string data;       // fingerprint of the data and the sample order
  std::string base = {};  // with adapters: fingerprint of the model that they are for
  LossScaler::State loss_scale;
  std::int64_t skipped = 0;      // the last consecutive steps without a finite loss and norm
  std::int64_t outliers = 0;     // the last consecutive outliers: RunHealth::outliers
  OutlierHistory::State recent;  // steps, with optimizer.skip_step
  SpikeHistory::State spikes;    // with train.spikes
  std::vector<double> expert_counts = {};            // Engine::set_balance_counts
  std::vector<SkippedSamples> skipped_samples = {};  // of this stage, by rewinds
  bool operator==(const TrainerState&) const = default;
};

struct CheckpointOptions {
  std::vector<Tokenizer::File> files = {};  // text files for the model directory; rank 0's are used
  std::int64_t keep = 2;                    // older checkpoints are removed; 0 keeps all
  std::string keep_always = {};  // why it is never removed: the end of a stage, …; empty: it may be
  std::string config = {};       // the run's configuration as YAML, stored with the state
  std::vector<Ancestor> ancestors = {};  // of the new checkpoint; on rank 0
  std::uint64_t max_shard_bytes = 5'000'000'000;
  ProgressCall progress = {};  // bytes that this rank writes
};

// Writes checkpoints/step-XXXXXXXX and its state under temporary names, syncs, renames, and only
// then moves `latest`. If anything fails, it removes the temporary directories, keeps the existing
// checkpoints and throws Failure; Diverged if weights are not finite. Returns the model directory.
std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints, Engine& engine,
                                      const TrainerState& state, const CheckpointOptions& options);
// Its two halves. check_finite() uses the engine and the group of all ranks. write_checkpoint()
// uses only the groups Checkpoint and HostTp; with a finished snapshot it does not use the backend,
// so it may run in another thread while the engine trains.
class Snapshot;
void check_finite(Engine& engine, const TrainerState& state);
std::filesystem::path write_checkpoint(const std::filesystem::path& checkpoints, Engine& engine,
                                       const TrainerState& state, const CheckpointOptions& options,
                                       const Snapshot* snapshot = nullptr);

// Loads weights, optimizer and state into a prepared engine. All ranks call it. Every file is
// checked against its hash while it is read. Throws SharedUserError (DamagedFile) if one is damaged
// or missing, and another UserError if the model is another one; the engine's content is then
// undefined. If the precision differs from that of the checkpoint, weights are loaded from its
// master weights.
//
// `begins`, if given, decides whether a new stage begins with this checkpoint. Then the model may
// differ in what leaves its weights valid (other_shape).
using BeginsStage = std::function<bool(const TrainerState&)>;
TrainerState load_checkpoint(const std::filesystem::path& checkpoint, Engine& engine,
                             const BeginsStage& begins = {},
                             CheckpointOf owner = CheckpointOf::ThisRun);

// The content of trainer.json. It has no history. `source` is named in errors. An `indent` of -1
// writes one line.
std::string state_to_json(const TrainerState& state, DType precision, int indent = 2);
TrainerState state_from_json(const std::string& text, const std::string& source);

// UserError if a run with this model cannot continue a checkpoint: its shapes differ, or only one
// of them has adapters.
void check_saved_model(const std::filesystem::path& checkpoint, const ModelConfig& model);

// These read a checkpoint's properties without loading it.
TrainerState saved_state(const std::filesystem::path& model);
DType saved_precision(const std::filesystem::path& model);
// The run's configuration at the time of the save, as YAML; empty if it is not stored.
std::string saved_config(const std::filesystem::path& model);

}  // namespace kintsugi
