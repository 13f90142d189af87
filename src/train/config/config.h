#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/yaml_reader.h"
#include "data/sampling/batch_schedule.h"
#include "model/config.h"
#include "optim/offloaded_update.h"
#include "optim/schedule.h"
#include "optim/skip_step.h"
#include "optim/update_rule.h"
#include "parallel/layout.h"
#include "tensor/dtype.h"

namespace kintsugi {

class Tokenizer;

// The configuration of a run: one YAML file whose sections are these structs. keys.h describes
// every key once.

enum class DeviceChoice : std::uint8_t { Auto, Cpu, Cuda, Hip };
// Megatron010: the order of Megatron up to version 0.10, which takes different numbers of samples
// from the sources of a blend.
enum class DataOrder : std::uint8_t { Kintsugi, Megatron, Megatron010 };
// Windows over the concatenated documents, or whole documents by best fit.
enum class Packing : std::uint8_t { Windows, BestFit, Single };
// New rows of a vocabulary that is larger than that of model.init: the mean of all old rows, or of
// the rows of the tokens that the old tokenizer gives for the text of the new one.
enum class NewTokens : std::uint8_t { Mean, Subtokens };
std::string_view to_string(DeviceChoice device);

// A length of time; written with a unit: 90s, 30min, 1h30min.
struct Duration {
  double seconds = 0;
  bool operator==(const Duration&) const = default;
};

// Who is told about events of the run.
struct NotifyConfig {
  std::optional<std::string> command = {};  // of the shell, run on rank 0
  std::optional<std::string> webhook = {};  // http address to which the event is posted
  std::vector<std::string> on = {"finished", "failed", "stopped", "diverged", "spike", "stalled"};
  std::optional<Duration> stalled_after = {};  // without a step; none: from the median step
  bool operator==(const NotifyConfig&) const = default;
};

struct RunSection {
  std::string dir = "runs/run";
  std::uint64_t seed = 1;
  // A checkpoint or run directory of another run, which this run continues.
  std::optional<std::string> from = {};
  Duration time_limit;   // since the launch; the run saves and stops before it. 0: none
  Duration stop_margin;  // for the last save, before the end of the job. 0: measured
  // The file with the nodes to avoid; none: see node_ledger_path() (launch/node_ledger.h).
  std::optional<std::string> node_ledger = {};
  bool tensorboard = true;  // event files in tensorboard/
  bool prometheus = true;   // metrics.prom
  bool wandb = false;       // offline runs of W&B in wandb/
  NotifyConfig notify = {};
  bool operator==(const RunSection&) const = default;
};

struct DataSource {
  std::string path;  // token store or text file
  std::string name;  // default: derived from the path
  // Default 1; Megatron's order distinguishes 1 from no weight.
  std::optional<double> weight = {};
  std::int64_t tokens = 0;  // instead of a weight; for all sources or for none
  double max_epochs = 0;    // 0: data.max_epochs
  bool operator==(const DataSource&) const = default;
};

struct ValidSource {
  std::string path, name;
  bool operator==(const ValidSource&) const = default;
};

struct DataConfig {
  std::vector<DataSource> train;
  std::vector<ValidSource> valid;  // empty: hold out valid_fraction of each source
  double valid_fraction = 0.05;
  std::string tokenizer = "bytes";
  std::optional<std::int64_t> seed = {};  // of the order of samples; see RunConfig::data_seed()
  std::int64_t sequence_length = 256;
  double temperature = 0;  // 0: use the weights; otherwise weights are tokens^(1 / temperature)
  double max_epochs = 0;   // limit per source for the whole run; 0: no limit
  bool document_mask = false;
  bool boundary_loss = true;
  DataOrder order = DataOrder::Kintsugi;
  bool megatron() const { return order != DataOrder::Kintsugi; }
  Packing packing = Packing::Windows;
  bool packed() const { return packing != Packing::Windows; }
  std::string split = "949,50,1";  // only with order: megatron
  std::int64_t prefetch = 4;       // batches read ahead
  bool operator==(const DataConfig&) const = default;
};

struct BatchConfig {
  std::int64_t global = 32;  // sequences per optimizer step; batch.micro is layout.micro_batch
  BatchRamp ramp;            // of `global`
  bool operator==(const BatchConfig&) const = default;
};

// Settings of Muon; without optimizer.kind muon they are not used.
struct MuonConfig {
  double lr = 0;  // peak learning rate of the matrices; 0: optimizer.lr
  double momentum = 0.95;
  bool nesterov = true;
  std::int64_t steps = 5;  // of the Newton-Schulz iteration
  LrAdjustment adjust_lr = LrAdjustment::MatchRmsAdamW;
  DType precision = DType::BF16;  // of the exchange between ranks and of the iteration
  bool operator==(const MuonConfig&) const = default;
};

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::AdamW;  // Muon: of the hidden matrices, AdamW of the rest
  double lr = 1e-3;
  double min_lr = 1e-4;
  std::int64_t warmup_steps = 50;
  ScheduleKind schedule = ScheduleKind::Cosine;
  std::int64_t decay_steps = 0;  // wsd only; 0: a fifth of all steps
  double weight_decay = 0.1;
  bool decay_embeddings = true;  // false: no weight decay on token and position embeddings
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  double clip = 1.0;                 // maximum global gradient norm; 0: no clipping
  DType moments = DType::F32;        // or bf16
  bool stochastic_rounding = false;  // for bf16 moments
  MuonConfig muon;
  SkipStepOptions skip_step;
  bool operator==(const OptimizerConfig&) const = default;
};

// What a run does after a loss far above those of the steps before.
enum class SpikeAction : std::uint8_t { None, Warn, Rewind, Stop };
struct SpikeOptions {
  SpikeAction action = SpikeAction::None;
  std::int64_t window = 128;        // steps
  double threshold = 10;            // robust standard deviations above the median of the window
  std::int64_t rewind_steps = 100;  // a rewind goes back at least so many steps
  std::int64_t skip_batches = 200;  // and leaves out at least so many batches of data
  std::int64_t max_rewinds = 3;     // in a row
  bool operator==(const SpikeOptions&) const = default;
};

// Texts that the model generates whenever a checkpoint is saved.
struct SamplesConfig {
  std::vector<std::string> prompts = {};  // empty: none
  std::int64_t tokens = 64;               // at most, for each prompt
  bool operator==(const SamplesConfig&) const = default;
};

struct TrainConfig {
  std::int64_t steps = 500;        // 0: only `tokens` ends the run; see RunConfig::total_steps()
  std::int64_t tokens = 0;         // 0: no limit
  std::int64_t eval_every = 100;   // 0: never
  std::int64_t eval_batches = 20;  // micro-batches per evaluation; 0: all held-out samples
  // Task files, or directories of them, that are evaluated during training.
  std::vector<std::string> eval_tasks = {};
  std::int64_t eval_tasks_every = 0;                   // steps; 0: whenever a checkpoint is saved
  std::int64_t eval_tasks_limit = 0;                   // documents per task; 0: all
  std::optional<std::int64_t> checkpoint_every = 250;  // 0: only at the end; none: by Young/Daly
  std::int64_t keep_checkpoints = 2;                   // 0: all
  std::int64_t keep_every = 0;         // steps between checkpoints that are never removed; 0: none
  bool async_save = true;              // write checkpoints while the training goes on
  std::int64_t max_failed_saves = 3;   // consecutive ones, which end the run
  std::optional<Duration> mtbf = {};   // mean time between failures; none: from the nodes
  std::int64_t memory_copy_every = 0;  // steps between copies in the memory of nodes; 0: none
  bool save = true;                    // false: no checkpoints, not even at the end
  std::int64_t log_every = 10;         // steps per log line; metrics.jsonl has every step
  DType precision = DType::F32;
  Fp8Config fp8 = {};
  // OLMoE's coefficients, and DeepSeek-V3's speed; only models with experts use them.
  BalanceConfig balance = {
      .loss = 0.01, .z_loss = 0.001, .bias_speed = 0.001, .statistics_every = 10};
  double dropout = 0.0;
  std::int64_t classifier_chunk = 0;    // tokens per logits chunk; 0: chosen by vocabulary size
  double z_loss = 0;                    // coefficient of the mean of log^2 Z in the trained loss
  LossScaleOptions loss_scale;          // fp16 only
  EmaOptions ema;                       // moving average of the weights
  std::int64_t max_skipped_steps = 50;  // consecutive steps that were skipped: diverged
  SpikeOptions spikes;
  SamplesConfig samples = {};
  std::int64_t verify_replicas_every = 0;  // steps; 0: never
  bool operator==(const TrainConfig&) const = default;
};

// Communication between ranks.
struct CommConfig {
  DType reduce = DType::F32;   // type in which gradients are reduced; fp64 runs use fp64
  bool check = false;          // check that all ranks call the same collectives; slower
  bool deterministic = false;  // MPI reduces in rank order: bitwise the same in every run
  double timeout_s = 600;      // a call that a step waits for longer than this ends the job
  double silence_s = 10;       // a rank without a sign of life for this time ends it; 0: never
  // For NCCL:
  bool allow_sockets = false;     // allow TCP between nodes
  bool share_gpu = false;         // allow several ranks on one GPU, for tests
  bool register_buffers = false;  // register buffers with NCCL, which saves copies
  bool operator==(const CommConfig&) const = default;
};

// The checks of ranks and nodes before the first step; rates are fractions of the others' median.
struct PreflightConfig {
  bool enabled = true;
  bool links = true;        // measure the network between nodes
  double slow = 0.85;       // GPUs, links between nodes: slower is a warning
  double failed = 0.5;      // slower is an error
  double timeout_s = 60;    // of one check on one rank
  double exclude_days = 1;  // how long a bad node is listed in the node ledger; 0: not at all
  bool operator==(const PreflightConfig&) const = default;
};

// How the energy of the run is measured (energy/).
struct EnergyConfig {
  bool enabled = true;
  double sample_s = 0.5;   // time between two readings of the meters
  std::string root = "/";  // holds sys/…, as the kernel provides it
  double node_w = 0;       // of a whole node without meters, for an estimate; 0: no estimate
  // Of the GPUs, set after baseline_steps steps (energy/power/power_policy.h); 0: not changed.
  double power_limit_w = 0;
  std::int64_t gpu_clock_mhz = 0;
  std::int64_t baseline_steps = 20;
  // Name or file of a machine description, for facility and prediction; null: unknown.
  std::optional<std::string> machine = {};
  // Instead of the machine's facility values; empty: as the machine.
  std::optional<double> pue = {}, kg_co2_per_kwh = {}, kg_co2_per_kwh_market = {};
  bool operator==(const EnergyConfig&) const = default;
};

// What is stored in host memory instead of device memory.
struct OffloadConfig {
  bool optimizer = false;                        // optimizer state
  bool gradients = false;                        // all but one or two layers
  bool activations = false;                      // block inputs, with layout.recompute: full
  UpdateLocation update = UpdateLocation::Auto;  // where offloaded optimizer state is updated
  bool operator==(const OffloadConfig&) const = default;
};

// Settings of the GPU backend; other backends ignore them.
struct GpuConfig {
  // Number, UUID ("GPU-6f…") or PCI id ("0000:1b:00.0"); auto: one GPU per rank.
  std::string device = "auto";
  bool deterministic = false;  // bitwise the same in every run on the same GPU; slower
  // Replay repeated micro-batches as graphs; auto: where these are reliable.
  std::optional<bool> graphs = {};
  bool tf32 = false;  // fp32 matmuls with a 10-bit mantissa
  // File with the fastest algorithm per matmul shape; auto: in the user's cache directory.
  std::string matmul_cache = "auto";
  bool operator==(const GpuConfig&) const = default;
};

// What a run trains for.
enum class ObjectiveKind : std::uint8_t {
  LanguageModel,   // the next token of a text
  Sft,             // the answers of examples: tokens with a loss mask
  Dpo,             // preferred answers over rejected ones
  Classification,  // the label of a text
};
std::string_view to_string(ObjectiveKind kind);
struct ObjectiveConfig {
  ObjectiveKind kind = ObjectiveKind::LanguageModel;
  double beta = 0.1;           // DPO: the strength of the reference model
  double label_smoothing = 0;  // DPO: probability that a preference is the wrong way round
  // Classification: weights of the losses, in the order of the labels, or "balanced": documents /
  // (labels x documents of the label). Empty: 1.
  NumbersOrWord class_weights = {};
  bool operator==(const ObjectiveConfig&) const = default;
};

enum class AdapterKind : std::uint8_t { None, Lora };
struct AdapterConfig {
  AdapterKind kind = AdapterKind::None;
  std::int64_t r = 16;
  double alpha = 32;
  double dropout = 0;
  bool rslora = false;
  std::vector<std::string> targets = {};  // LoraConfig::targets
  std::vector<std::string> train = {};    // LoraConfig::train
  // A PEFT directory whose adapters the run starts from; it has r, alpha and targets.
  std::optional<std::string> init = {};
  bool operator==(const AdapterConfig&) const = default;
};

// What one stage of a run trains, and how: complete. A run without `stages:` is one stage.
struct StageConfig {
  RunSection run;
  ModelConfig model;         // complete: the preset or config.json with the overrides on top
  std::string model_preset;  // where the model came from; empty if every field was given
  std::string model_config;
  std::string model_init;  // the directory whose weights the run starts from; empty: random weights
  NewTokens model_new_tokens = NewTokens::Mean;
  bool model_allow_unused = false;  // of the tensors in model_init
  // Values given under `model:` are kept. Values that come only from a preset or config.json are
  // adapted to the run: the vocabulary to the tokenizer, the positions to the sequence length.
  bool vocab_size_given = false, max_positions_given = false, rope_scaling_given = false;
  DataConfig data;
  BatchConfig batch;
  OptimizerConfig optimizer;
  TrainConfig train;
  Layout layout = {.dp = 0, .micro_batch = 8};
  bool layout_auto = false;  // `layout: auto`: tp, pp, dp and zero are chosen for the ranks
  CommConfig comm;
  PreflightConfig preflight;
  EnergyConfig energy;
  OffloadConfig offload;
  ObjectiveConfig objective;
  AdapterConfig adapter;
  std::vector<std::string> freeze;  // patterns of the names of parameters that are not trained
  DeviceChoice device = DeviceChoice::Auto;
  GpuConfig gpu;
  std::int64_t threads = 0;  // 0: all cores
  std::int64_t stage = 0;    // its number in the run
  std::string stage_name;    // empty: the run has no `stages:`
  // The batches of this stage before `batch`, oldest first. No key: with_past_batches() sets it.
  std::vector<PastBatch> past_batches;
  // Loaded from data.tokenizer by resolve_tokenizer; not compared, since the keys determine it.
  struct Loaded {
    std::shared_ptr<const Tokenizer> tokenizer;
    bool operator==(const Loaded&) const { return true; }
  } loaded;
  bool operator==(const StageConfig&) const = default;

  // The data is examples, pairs or labelled texts, which are not cut.
  bool on_examples() const { return objective.kind != ObjectiveKind::LanguageModel; }
  BatchSchedule batches() const { return BatchSchedule(past_batches, batch.global, batch.ramp); }
  // The samples of the steps after `done`.
  BatchSchedule batches_after(BatchesDone done) const {
    return BatchSchedule(batch.global, batch.ramp, done);
  }
  std::int64_t total_steps() const;  // whichever of train.steps and train.tokens ends the run first
  std::int64_t total_samples() const { return batches().first_sample(total_steps() + 1); }
  double total_tokens() const {
    return static_cast<double>(total_samples()) * static_cast<double>(data.sequence_length);
  }
  // Every stage has another order by default, so that one on the same data does not begin with the
  // samples of the stage before.
  std::uint64_t data_seed() const {
    return data.seed ? static_cast<std::uint64_t>(*data.seed)
                     : run.seed + static_cast<std::uint64_t>(stage);
  }
};

// A run, at one of its stages.
struct RunConfig : StageConfig {
  std::vector<StageConfig> stages;  // all of them; empty: the run has no `stages:`
  bool operator==(const RunConfig&) const = default;

  std::int64_t stage_count() const;
  RunConfig at_stage(std::int64_t number) const;
  RunConfig alone() const;           // this stage as a run without `stages`
  std::int64_t steps_after() const;  // of the stages after this one
  std::string stage_title() const;   // "stage 2 of 3 (anneal)"; empty without `stages`
};

// Returns a checked and complete configuration. `overrides` are "a.b=value". Throws a UserError
// that names the file and line (or the override), the dotted key and the remedy. parse_run_config
// reads no other file than model.config, or the config.json in model.init or, if that is gone, in
// the run's own checkpoint; load_run_config also resolves the tokenizer.
RunConfig parse_run_config(const std::string& text, const std::string& source,
                           const std::vector<std::string>& overrides = {});
RunConfig load_run_config(const std::filesystem::path& path,
                          const std::vector<std::string>& overrides = {});

// Loads the tokenizer if it is not loaded. Sets the model's vocabulary size, unless it is given,
// and its end-of-document token. Call this before you read sizes of the model.
void resolve_tokenizer(RunConfig& config);

// Writes every key with its resolved value. Reading it back gives the same configuration without
// the preset or config.json, which are only named in a comment.
std::string to_yaml(const RunConfig& config);
// The same without run.notify, whose command or address may contain a secret: for files that are
// given to others, such as checkpoints and profiles.
std::string to_public_yaml(const RunConfig& config);

// Serialize a layout to send it from the rank that chose it to the others. Its micro_batch, which
// is batch.micro, is not included.
std::string to_yaml(const Layout& layout);
void read_layout(const std::string& text, Layout& layout);

// All dotted keys, such as "optimizer.lr".
std::vector<std::string> run_config_keys();

// All dotted keys with their values as to_yaml writes them, including list items, such as
// "data.train[0].path".
std::vector<std::pair<std::string, std::string>> config_values(const RunConfig& config);

// Whether run.notify has a command or an address: these may contain a secret.
bool has_secrets(const RunConfig& config);

// Writes config.yaml of a run; with secrets only its owner may read it.
void write_config_file(const std::filesystem::path& path, const RunConfig& config);

}  // namespace kintsugi
