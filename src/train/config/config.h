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

#include "model/config.h"
#include "optim/loss_scaler.h"
#include "optim/schedule.h"
#include "optim/state_offload.h"
#include "parallel/layout.h"
#include "tensor/dtype.h"

namespace kintsugi {

class Tokenizer;

// The configuration of a run: one YAML file whose sections are these structs. config.cpp describes
// every key once.

enum class DeviceChoice : std::uint8_t { Auto, Cpu, Cuda };
// Megatron010: that of Megatron's versions up to 0.10, which ask each source of a blend for other
// numbers of samples.
enum class DataOrder : std::uint8_t { Kintsugi, Megatron, Megatron010 };
std::string_view to_string(DeviceChoice device);

struct RunSection {
  std::string dir = "runs/run";
  std::uint64_t seed = 1;
  bool operator==(const RunSection&) const = default;
};

struct DataSource {
  std::string path;  // of a token store or a text file
  std::string name;  // filled in from the path where none is given
  // Counts as 1 where none is given; Megatron's order tells the two apart.
  std::optional<double> weight = {};
  std::int64_t tokens = 0;  // instead of a weight, for all sources or none
  double max_epochs = 0;    // 0: data.max_epochs
  bool operator==(const DataSource&) const = default;
};

struct ValidSource {
  std::string path, name;
  bool operator==(const ValidSource&) const = default;
};

struct DataConfig {
  std::vector<DataSource> train;
  std::vector<ValidSource> valid;  // empty: what valid_fraction holds out of each source
  double valid_fraction = 0.05;
  std::string tokenizer = "bytes";
  std::int64_t sequence_length = 256;
  double temperature = 0;  // 0: weights rule; otherwise shares are tokens^(1 / temperature)
  double max_epochs = 0;   // of any source, in the whole run; 0: no limit
  bool document_mask = false;
  bool boundary_loss = true;
  DataOrder order = DataOrder::Kintsugi;
  bool megatron() const { return order != DataOrder::Kintsugi; }
  std::string split = "949,50,1";  // order megatron only
  std::int64_t prefetch = 4;       // batches read ahead
  bool operator==(const DataConfig&) const = default;
};

struct BatchConfig {
  std::int64_t global = 32;  // sequences per optimizer step; batch.micro is layout.micro_batch
  bool operator==(const BatchConfig&) const = default;
};

struct OptimizerConfig {
  double lr = 1e-3;
  double min_lr = 1e-4;
  std::int64_t warmup_steps = 50;
  ScheduleKind schedule = ScheduleKind::Cosine;
  std::int64_t decay_steps = 0;  // wsd only; 0: a fifth of the run
  double weight_decay = 0.1;
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  double clip = 1.0;                 // of the global gradient norm; 0: none
  DType moments = DType::F32;        // or bf16
  bool stochastic_rounding = false;  // of bf16 moments
  bool operator==(const OptimizerConfig&) const = default;
};

struct TrainConfig {
  std::int64_t steps = 500;        // 0: `tokens` alone ends the run. Ask RunConfig::total_steps()
  std::int64_t tokens = 0;         // 0: no limit
  std::int64_t eval_every = 100;   // 0: never
  std::int64_t eval_batches = 20;  // micro-batches per evaluation; 0: everything that is held out
  std::int64_t checkpoint_every = 250;  // 0: only at the end
  std::int64_t keep_checkpoints = 2;    // 0: all
  bool save = true;                     // false: no checkpoints, not even at the end
  std::int64_t log_every = 10;          // plain lines; metrics.jsonl has every step
  DType precision = DType::F32;
  double dropout = 0.0;
  std::int64_t classifier_chunk =
      0;                        // tokens whose logits exist at a time; 0: chosen for the device
  LossScaleOptions loss_scale;  // fp16 only
  std::int64_t max_skipped_steps = 50;  // in a row without a finite loss and norm: diverged
  bool operator==(const TrainConfig&) const = default;
};

// What goes between ranks.
struct CommConfig {
  DType reduce = DType::F32;   // what gradients are summed in; fp64 runs use fp64
  bool check = false;          // that all ranks call the same collectives; slower
  bool deterministic = false;  // MPI's sums in rank order: the same bits in every run
  // Between GPUs, with NCCL:
  double timeout_s = 600;         // a call that takes longer ends the job
  bool allow_sockets = false;     // TCP between nodes, where there is nothing better
  bool share_gpu = false;         // several ranks on one GPU: for tests
  bool register_buffers = false;  // with the network, so that it copies less
  bool operator==(const CommConfig&) const = default;
};

// What lies in host memory instead of the device's.
struct OffloadConfig {
  bool optimizer = false;                  // the optimizer's state
  bool gradients = false;                  // but for a layer or two
  bool activations = false;                // blocks' inputs, with layout.recompute full
  UpdatePlace update = UpdatePlace::Auto;  // of the optimizer's state
  bool operator==(const OffloadConfig&) const = default;
};

// How the CUDA world works; without effect in the others.
struct CudaConfig {
  // Number, UUID ("GPU-6f…") or PCI id ("0000:1b:00.0"); auto: each rank of a node its own.
  std::string device = "auto";
  bool deterministic = false;  // the same bits in every run on the same GPU, at some cost in speed
  bool graphs = true;          // record repeated passes as CUDA graphs
  bool tf32 = false;           // fp32 products with 10 bits of mantissa
  std::string matmul_cache =
      "auto";  // file with the fastest algorithm per shape; auto: in the user's cache directory
  bool operator==(const CudaConfig&) const = default;
};

struct RunConfig {
  RunSection run;
  ModelConfig model;         // complete: the preset or config.json with the overrides on top
  std::string model_preset;  // where it came from; empty when every field was given
  std::string model_config;
  // What `model:` itself says stays. What only a preset or config.json chose follows the run: the
  // vocabulary holds the tokenizer's, the positions are those that are trained.
  bool vocab_size_given = false, max_positions_given = false, rope_scaling_given = false;
  DataConfig data;
  BatchConfig batch;
  OptimizerConfig optimizer;
  TrainConfig train;
  Layout layout = {.dp = 0, .micro_batch = 8};
  bool layout_auto = false;  // `layout: auto`: tp, pp, dp and zero from the ranks
  CommConfig comm;
  OffloadConfig offload;
  DeviceChoice device = DeviceChoice::Auto;
  CudaConfig cuda;
  std::int64_t threads = 0;  // 0: all cores
  // What data.tokenizer names, once resolve_tokenizer has loaded it. It follows from the keys.
  struct Loaded {
    std::shared_ptr<const Tokenizer> tokenizer;
    bool operator==(const Loaded&) const { return true; }
  } loaded;
  bool operator==(const RunConfig&) const = default;

  std::int64_t tokens_per_step() const { return batch.global * data.sequence_length; }
  std::int64_t total_steps() const;  // whichever of train.steps and train.tokens ends the run first
  std::int64_t total_samples() const { return total_steps() * batch.global; }
};

// Read, checked and completed. `overrides` are "a.b=value". Everything that is wrong is a UserError
// that names the file and line (or the override), the dotted key and the remedy. Parsing reads no
// other file than model.config; loading also resolves the tokenizer.
RunConfig parse_run_config(const std::string& text, const std::string& source,
                           const std::vector<std::string>& overrides = {});
RunConfig load_run_config(const std::filesystem::path& path,
                          const std::vector<std::string>& overrides = {});

// Loads the tokenizer, unless it is loaded: the model takes its vocabulary, where that is left
// open, and its end of document. Whoever asks for sizes of the model asks after this.
void resolve_tokenizer(RunConfig& config);

// Every key, resolved: it reads back to the same configuration with no need of the preset or
// config.json, which are only remembered in a comment.
std::string to_yaml(const RunConfig& config);

// A layout as text and back, from the rank that chose it to the others. Its micro-batch, which is
// batch.micro, stays as it is.
std::string to_yaml(const Layout& layout);
void read_layout(const std::string& text, Layout& layout);

// Every dotted key: "optimizer.lr".
std::vector<std::string> run_config_keys();

// Every dotted key with its value as to_yaml writes it, those of list items too:
// "data.train[0].path".
std::vector<std::pair<std::string, std::string>> config_values(const RunConfig& config);

}  // namespace kintsugi
