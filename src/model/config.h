#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace kintsugi {

enum class Family : std::uint8_t { Gpt2, Llama, Qwen2, Qwen3, Bloom, Olmo2, Olmo3, Retnet };
enum class PositionKind : std::uint8_t { Learned, Rope, Alibi, Retention };
// Which tokens attention of a layer sees: all before, or those in a window.
enum class LayerType : std::uint8_t { Full, Sliding };
std::string_view to_string(LayerType type);  // full_attention sliding_attention
LayerType parse_layer_type(std::string_view text);
std::string_view to_string(
    Family family);  // gpt2 llama qwen2 qwen3 bloom: Hugging Face's model_type
Family parse_family(std::string_view text);

// How rotary frequencies are stretched for longer sequences: Llama 3.1's way, or YaRN.
enum class RopeScalingKind : std::uint8_t { Llama3, Yarn };
std::string_view to_string(RopeScalingKind kind);
RopeScalingKind parse_rope_scaling(std::string_view text);

struct RopeScaling {
  RopeScalingKind type = RopeScalingKind::Llama3;
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_positions = 8192;
  // YaRN: dimensions that turn more often than beta_fast in the original length stay, those below
  // beta_slow are stretched; cosines and sines are multiplied by the attention factor.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double attention_factor = 0.0;  // 0: 0.1 ln(factor) + 1
  bool operator==(const RopeScaling&) const = default;
};

struct ModelConfig {
  Family family = Family::Llama;
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;    // 0: as many as heads
  std::int64_t head_dim = 0;    // 0: hidden_size / heads
  std::int64_t ffn_size = 0;    // 0: 4 x hidden_size
  std::int64_t value_size = 0;  // retention's values, of all heads; 0: the family has none
  std::int64_t max_positions =
      0;  // learned positions: the table's length; otherwise the longest sequence meant
  double norm_eps = 1e-5;
  double rope_theta = 10000.0;
  std::optional<RopeScaling> rope_scaling;
  std::int64_t sliding_window = 0;          // keys that a query of a sliding layer sees
  std::vector<LayerType> layer_types = {};  // repeated over the layers; none: all full
  bool tied = true;                         // the head shares the embedding's matrix
  double init_std = 0.02;
  std::int64_t bos_token = -1;  // -1: none
  std::int64_t eos_token = -1;

  PositionKind positions() const;
  LayerType layer_type(std::int64_t layer) const {
    return layer_types.empty() ? LayerType::Full
                               : layer_types[static_cast<std::size_t>(layer) % layer_types.size()];
  }
  std::int64_t qkv_rows() const { return (heads + 2 * kv_heads) * head_dim; }
  bool operator==(const ModelConfig&) const = default;

  // Fills in derived sizes and throws UserError, with the values, when they cannot be a model
  // (heads that do not divide …).
  void complete_and_check();
};

// ---- presets: models/*.yaml, built into the binary
std::vector<std::string> preset_names();
ModelConfig load_preset(const std::string& name);  // UserError names the nearest preset
// A YAML text with the fields of ModelConfig under their own names, on top of `base`.
ModelConfig parse_model_yaml(const std::string& text, const std::string& source,
                             ModelConfig base = {});

// ---- Hugging Face config.json
ModelConfig read_hf_config(const std::filesystem::path& file);
ModelConfig parse_hf_config(const std::string& json, const std::string& source);
std::string write_hf_config(const ModelConfig& config,
                            DType dtype);  // version 4 keys, readable by 4 and 5
std::string write_hf_generation_config(const ModelConfig& config);

// Where a model is: the directory itself if it holds a config.json, or the latest checkpoint of the
// run that it is the directory of. UserError for a run without a checkpoint; any other path is left
// to whoever opens it.
std::filesystem::path model_directory(const std::filesystem::path& path);

// A preset's name, a YAML file, a config.json or a directory that holds one, or a run.
ModelConfig resolve_model(const std::string& name_or_path);

}  // namespace kintsugi
