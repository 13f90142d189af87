#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "model/spec.h"

namespace kintsugi {

class ConfigObject;

// What sets a family of models apart. Each has a file of its own, which defines one of these; no
// other file asks for a family by name.
struct FamilyInfo {
  Family family;
  const char* model_type;    // in config.json and in ours
  const char* architecture;  // transformers' class
  PositionKind positions;
  bool windows = false;        // layers may have sliding windows
  bool values = false;         // value_size is a size of its own
  bool document_masks = true;  // tokens can be confined to their document
  // Beyond the checks that all families share; may be null.
  void (*check)(ModelConfig& config);
  // config.json, but for what all families share: tokens, init_std, dtype.
  void (*read)(const ConfigObject& root, ModelConfig& config);
  void (*write)(const ModelConfig& config, nlohmann::ordered_json& root);
  ModelSpec (*spec)(const ModelConfig& config);
};

extern const FamilyInfo kGpt2, kLlama, kQwen2, kQwen3, kBloom, kOlmo2, kOlmo3, kRetnet;

std::span<const FamilyInfo* const> all_families();
const FamilyInfo& family_info(Family family);

}  // namespace kintsugi
