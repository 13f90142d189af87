#pragma once

#include "model/families/llama_like.h"

namespace kintsugi {

// Common code of the families whose layers have experts.

// The keys and names in which these families differ.
struct ExpertNames {
  const char* count;                 // key of the number of experts
  const char* size;                  // key of the width of an expert
  std::string_view module = "mlp.";  // of a layer
  std::array<std::string_view, 3> matrices = {"gate_proj", "up_proj", "down_proj"};
  bool bias = false;  // the scores are sigmoids, and a bias is added when experts are chosen
};
// Reads what all of them have: number, choices and width of the experts.
void read_experts(const ConfigObject& root, ModelConfig& config, const ExpertNames& names);
void write_experts(const ModelConfig& config, nlohmann::ordered_json& root,
                   const ExpertNames& names);
// The same for DeepSeek's kind: sigmoids, a bias, groups, a scale, shared experts, and first layers
// without experts. What is absent from config.json follows `defaults`.
struct BiasedDefaults {
  bool normalize = false;
  std::int64_t dense = 0;  // layers
};
void read_biased_experts(const ConfigObject& root, ModelConfig& config,
                         const BiasedDefaults& defaults);
void write_biased_experts(const ModelConfig& config, nlohmann::ordered_json& root);
void check_biased_experts(const ModelConfig& config);
SublayerSpec biased_feed_forward(const ModelConfig& config, int layer);
ExpertsSpec experts_spec(const ModelConfig& config, int layer, const ExpertNames& names);
// Throw UserError if the experts have what these families do not: groups, a scale, shared experts;
// and also layers without experts, or a width that is not ffn_size.
void check_softmax_experts(const ModelConfig& config);
void check_only_experts(const ModelConfig& config);
// The MLP or the experts of a layer.
SublayerSpec feed_forward(const ModelConfig& config, int layer, const ExpertNames& names);

}  // namespace kintsugi
