#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace kintsugi {

// The content of adapter_config.json: low-rank adapters (LoRA) as PEFT stores them.
struct PeftConfig {
  LoraConfig lora;   // targets is empty if target_modules is a pattern
  std::string base;  // base_model_name_or_path; empty: unknown
  std::string task_type;
  bool fan_in_fan_out = false;  // PEFT's note that weights are stored [in, out]; nothing follows
  // Of modules with other values than lora.r and lora.alpha, by the end of their names.
  std::map<std::string, std::int64_t> ranks = {};
  std::map<std::string, double> alphas = {};

  // Of one module: "model.layers.0.self_attn.q_proj".
  std::int64_t rank_of(std::string_view module) const;
  double scale_of(std::string_view module) const;
  bool operator==(const PeftConfig&) const = default;
};

inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kAdapterStem = "adapter_model";  // of the file of tensors

// Throws UserError, with the key, if a key asks for another computation than LoRA. `source` names
// the file.
PeftConfig parse_peft_config(const std::string& json, const std::string& source);
PeftConfig read_peft_config(const std::filesystem::path& directory);

// The keys that PEFT 0.21 writes.
std::string write_peft_config(const PeftConfig& config);

// Of a model with adapters (ModelConfig::lora) that was trained from `base`.
PeftConfig peft_config_of(const ModelConfig& model, const std::string& base);

// Whether the directory holds an adapter and no complete model.
bool is_adapter_directory(const std::filesystem::path& directory);
// For code that needs a complete model: a UserError with the remedy.
[[noreturn]] void refuse_adapter(const std::filesystem::path& directory);

// The directories of a model that is computed: a Hugging Face model, and perhaps an adapter.
struct ModelFiles {
  std::filesystem::path model;         // config.json and the weights
  std::filesystem::path adapter = {};  // a PEFT directory that is added to them; empty: none

  // What the user knows it by.
  const std::filesystem::path& name() const { return adapter.empty() ? model : adapter; }
  // The directory with the tokenizer: that of the adapter, if it has one.
  const std::filesystem::path& tokenizer() const;
};

// `checkpoint` is a model, a checkpoint, a run directory (its latest checkpoint), or an adapter,
// whose base is found by base_of_adapter(). `adapter` is an adapter of it; empty: none. Throws
// UserError.
ModelFiles find_model(const std::filesystem::path& checkpoint,
                      const std::filesystem::path& adapter = {});

// The directory that base_model_name_or_path names, as it is or relative to the adapter. `remedy`
// says how to name another one.
std::filesystem::path base_of_adapter(const std::filesystem::path& adapter,
                                      const PeftConfig& config,
                                      std::string_view remedy =
                                          "give the base model as "
                                          "--checkpoint and this directory "
                                          "as --adapter");

}  // namespace kintsugi
