#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <span>

#include "model/spec.h"

namespace kintsugi {

class ConfigObject;

// Everything that is specific to a model family. Each family defines one FamilyInfo in its own
// file; no other file depends on a particular family.
struct FamilyInfo {
  Family family;
  const char* model_type;    // in config.json and in model YAML files
  const char* architecture;  // class name in transformers
  const char* classifier;    // the same for sequence classification; null: there is none
  PositionKind positions;
  bool windows = false;        // layers may have sliding windows
  bool values = false;         // the family uses value_size
  bool experts = false;        // its layers have experts
  bool latent = false;         // its attention has latents (LatentConfig)
  bool bias = false;           // the routers of its experts have biases (ExpertsSpec::bias)
  bool qk_norm = false;        // the family uses qk_norm
  bool document_masks = true;  // attention can be limited to a document
  // The ends of the names of tensors that files may have beside the weights: masks and tables that
  // are computed, not trained. Unused entries are null.
  std::array<const char*, 2> buffers = {};
  // Files may have layers after the last one that predict further tokens, which are not read. The
  // end of the name of a tensor that only these have; null: there are none.
  const char* further_layers = nullptr;
  // Checks in addition to those of all families; may be null.
  void (*check)(ModelConfig& config);
  // Read and write config.json, except for the keys that all families share: tokens, init_std,
  // dtype.
  void (*read)(const ConfigObject& root, ModelConfig& config);
  void (*write)(const ModelConfig& config, nlohmann::ordered_json& root);
  ModelSpec (*spec)(const ModelConfig& config);
};

extern const FamilyInfo kGpt2, kLlama, kQwen2, kQwen3, kBloom, kOlmo2, kOlmo3, kRetnet, kMixtral,
    kOlmoe, kQwen3Moe, kDots1, kGlm4Moe, kDeepseekV3;

std::span<const FamilyInfo* const> all_families();
const FamilyInfo& family_info(Family family);

}  // namespace kintsugi
