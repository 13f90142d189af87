#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace kintsugi {

enum class Family : std::uint8_t {
  Gpt2,
  Llama,
  Qwen2,
  Qwen3,
  Bloom,
  Olmo2,
  Olmo3,
  Retnet,
  Mixtral,
  Olmoe,
  Qwen3Moe,
  Dots1,
  Glm4Moe,
  DeepseekV3
};
enum class PositionKind : std::uint8_t { Learned, Rope, Alibi, Retention };
// Whether a layer's attention sees all earlier tokens or only those in a sliding window.
enum class LayerType : std::uint8_t { Full, Sliding };
std::string_view to_string(LayerType type);  // full_attention, sliding_attention
LayerType parse_layer_type(std::string_view text);
// Hugging Face's model_type: gpt2, llama, qwen2, …
std::string_view to_string(Family family);
Family parse_family(std::string_view text);

// How rotary frequencies are scaled for longer sequences.
enum class RopeScalingKind : std::uint8_t { Llama3, Yarn };
std::string_view to_string(RopeScalingKind kind);
RopeScalingKind parse_rope_scaling(std::string_view text);

struct RopeScaling {
  RopeScalingKind type = RopeScalingKind::Llama3;
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_positions = 8192;
  // YaRN: dimensions with more than beta_fast rotations in the original length are unchanged, those
  // with fewer than beta_slow are scaled. Cosines and sines are multiplied by attention_factor.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double attention_factor = 0.0;  // 0: from mscale and mscale_all_dim
  // Not 0: the factor is the quotient of 0.1 m ln(factor) + 1 for both; else that for m = 1. Latent
  // attention multiplies its scores by the square of that for mscale_all_dim.
  double mscale = 0.0, mscale_all_dim = 0.0;
  bool operator==(const RopeScaling&) const = default;
};

// Low-rank adapters (LoRA): y = x W^T + scale * (dropout(x) A^T) B^T, and W is not trained.
struct LoraConfig {
  std::int64_t r = 0;  // 0: no adapters
  double alpha = 0;
  double dropout = 0;
  bool rslora = false;  // the scale is alpha / sqrt(r) instead of alpha / r
  // Last parts of the names of modules: "q_proj". Empty: the defaults of the family. "all-linear":
  // every matrix of the blocks.
  std::vector<std::string> targets = {};
  std::vector<std::string> train = {};  // modules that are trained whole: PEFT's modules_to_save
  bool on() const { return r > 0; }
  double scale() const;
  bool operator==(const LoraConfig&) const = default;
};

// fp8 matmuls (E4M3). Scales are those of the operands as they are, one per row or one per matrix.
enum class Fp8Recipe : std::uint8_t { None, Rowwise, Tensorwise };
enum class FastAccumulation : std::uint8_t { Forward, All, None };  // which matmuls use it
struct Fp8Config {
  Fp8Recipe recipe = Fp8Recipe::None;
  bool wgrad = true;  // weight gradients too; false: in the run's precision
  // Sites that stay in the run's precision: head, attention.qkv, attention.up, attention.out,
  // retention.in, retention.out, mlp.up, mlp.down. The head always does.
  std::vector<std::string> filter = {"head"};
  FastAccumulation fast_accumulation = FastAccumulation::Forward;
  bool power_of_two_scales = true;
  struct Layers {
    std::int64_t first = 0, last = 0;
    bool operator==(const Layers&) const = default;
  };
  // Weights are quantized once per step and kept, which takes 2 bytes each; false: at every use.
  // With ZeRO 3 they never are.
  bool keep_weights = true;
  Layers bf16_layers = {};              // so many layers at either end stay in the run's precision
  std::int64_t statistics_every = 100;  // steps between counts of what is lost; 0: never
  bool on() const { return recipe != Fp8Recipe::None; }
  bool operator==(const Fp8Config&) const = default;
};

inline constexpr std::int64_t kMaxLayers = 16384;

// The sizes of multi-head latent attention, as in LatentAttentionSpec. head_dim is plain_dim +
// rotary_dim.
struct LatentConfig {
  std::int64_t query_rank = 0;  // 0: queries have no latents
  std::int64_t rank = 0;
  std::int64_t plain_dim = 0, rotary_dim = 0, value_dim = 0;
  bool operator==(const LatentConfig&) const = default;
};

// A mixture of experts in place of the MLPs.
struct ExpertsConfig {
  std::int64_t count = 0;                       // per layer
  std::int64_t chosen = 0;                      // per token
  std::int64_t size = 0;                        // width of an expert; 0: ffn_size
  std::int64_t shared = 0;                      // experts that all tokens use
  std::vector<std::int64_t> dense_layers = {};  // have an MLP of ffn_size instead
  bool normalize = true;                        // the weights of a token are divided by their sum
  double scale = 1;                             // of the weights
  // The experts are in groups, and a token chooses among those of its best groups.
  std::int64_t groups = 1, top_groups = 1;
  bool operator==(const ExpertsConfig&) const = default;
};

// Which tokens the balance loss counts: those of the same sequence, or of the last optimizer step.
enum class BalanceScope : std::uint8_t { Sequence, Batch };

// How experts are kept in balance while they are trained.
struct BalanceConfig {
  double loss = 0;  // coefficient of the balance loss
  BalanceScope scope = BalanceScope::Sequence;
  double z_loss = 0;      // coefficient of the mean of log^2 Z of the router's logits
  double bias_speed = 0;  // what a step adds to or takes from the biases of routers
  // An expert computes at most so many times the mean number of choices of each sequence; 0: all.
  double capacity = 0;
  std::int64_t statistics_every = 0;  // steps between records of the loads; 0: never
  bool even = false;                  // for timing: RouteOptions::even
  bool counts_last_step() const { return loss > 0 && scope == BalanceScope::Batch; }
  bool operator==(const BalanceConfig&) const = default;
};

struct ModelSpec;

struct ModelConfig {
  Family family = Family::Llama;
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // 0: same as heads
  std::int64_t head_dim = 0;  // 0: hidden_size / heads
  std::int64_t ffn_size = 0;  // 0: 4 x hidden_size
  std::optional<LatentConfig> latent = {};
  std::optional<ExpertsConfig> experts = {};
  std::int64_t value_size = 0;  // RetNet: width of the values of all heads; 0 in other families
  bool qk_norm = false;         // GLM: norms on each head of q and k; false in other families
  // Learned positions: rows of the table. Otherwise: the intended maximum sequence length.
  std::int64_t max_positions = 0;
  double norm_eps = 1e-5;
  double rope_theta = 10000.0;
  std::optional<RopeScaling> rope_scaling;
  std::int64_t sliding_window = 0;          // keys that a query attends to in a sliding layer
  std::vector<LayerType> layer_types = {};  // pattern, repeated over the layers; empty: all full
  bool tied = true;                         // the LM head shares the embedding's matrix
  double init_std = 0.02;
  std::int64_t bos_token = -1;  // -1: none
  std::int64_t eos_token = -1;
  std::int64_t pad_token = -1;  // only of classifiers; by default eos_token
  // The classes of a sequence classifier, in the order of their ids. Its head is score.weight,
  // which reads the last token of each document. Empty: a language model.
  std::vector<std::string> labels = {};
  // What is trained; config.json does not have it.
  LoraConfig lora = {};
  Fp8Config fp8 = {};
  BalanceConfig balance = {};
  std::vector<std::string> freeze = {};  // patterns (*, ?) of the names of parameters
  // Changes the layers that the family describes. Only for tests of sublayers that no family has.
  void (*change_layers)(ModelSpec& model) = nullptr;

  PositionKind positions() const;
  LayerType layer_type(std::int64_t layer) const {
    return layer_types.empty() ? LayerType::Full
                               : layer_types[static_cast<std::size_t>(layer) % layer_types.size()];
  }
  bool has_experts(std::int64_t layer) const;
  // Into so many parts, or a divisor of it, the tensor ranks can split what follows attention: the
  // columns of MLPs, and whole experts.
  std::int64_t feed_forward_parts() const;
  std::string feed_forward_text() const;  // "384 MLP columns"
  std::int64_t qkv_rows() const { return (heads + 2 * kv_heads) * head_dim; }
  bool is_classifier() const { return !labels.empty(); }
  bool operator==(const ModelConfig&) const = default;

  // Fills in derived sizes. Throws UserError if the sizes are inconsistent.
  void complete_and_check();
};

// ---- presets: models/*.yaml, built into the binary
std::vector<std::string> preset_names();
ModelConfig load_preset(const std::string& name);  // UserError names the nearest preset
// Parses YAML whose keys are the field names of ModelConfig. Fields that are absent keep their
// value in `base`.
ModelConfig parse_model_yaml(const std::string& text, const std::string& source,
                             ModelConfig base = {});

// ---- Hugging Face config.json
ModelConfig read_hf_config(const std::filesystem::path& file);
ModelConfig parse_hf_config(const std::string& json, const std::string& source);
// Writes the keys of transformers 4, which versions 4 and 5 can read.
std::string write_hf_config(const ModelConfig& config, DType dtype);
std::string write_hf_generation_config(const ModelConfig& config);

// Returns the path itself if it is a model or an adapter (a PEFT directory); for a run directory,
// its latest checkpoint; any other path unchanged. UserError for a run without a checkpoint.
std::filesystem::path model_directory(const std::filesystem::path& path);

// Reads the config.json of a model directory or a run directory.
ModelConfig read_model_directory(const std::filesystem::path& path);
// Returns whether the directory itself holds model*.safetensors.
bool holds_weights(const std::filesystem::path& directory);

// Accepts a preset name, a YAML file, a config.json, a model directory or a run directory.
ModelConfig resolve_model(const std::string& name_or_path);

}  // namespace kintsugi
