#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model/adapter/peft_config.h"
#include "model/parameter_set.h"
#include "tensor/safetensors.h"

namespace kintsugi {

// What a low-rank adapter adds to a parameter as the base model stores it: W += left · right.
struct LowRankUpdate {
  std::int64_t rows = 0, rank = 0, columns = 0;
  std::vector<double> left;   // (rows, rank), with the scale
  std::vector<double> right;  // (rank, columns)
};

// The name of the tensor of a trained parameter.
std::string name_in_adapter(const Parameter& parameter);

// A PEFT directory: adapter_config.json and adapter_model.safetensors. Throws UserError if it is
// incomplete or holds another kind of adapter.
class StoredAdapter {
 public:
  explicit StoredAdapter(const std::filesystem::path& directory);
  // Also checks that it is an adapter of this model; `base` names the model in errors.
  StoredAdapter(const std::filesystem::path& directory, const ModelConfig& model,
                const std::filesystem::path& base);

  struct Matrix {
    SafetensorsModel::Location a, b;  // [r, in], [out, r]
  };

  const std::filesystem::path& directory() const { return directory_; }
  const PeftConfig& config() const { return config_; }
  const SafetensorsModel& tensors() const { return tensors_; }
  std::int64_t elements() const;
  // By the name of the module: "model.layers.0.self_attn.q_proj".
  const std::map<std::string, Matrix>& matrices() const { return matrices_; }
  // Modules that were trained whole (modules_to_save), by the name of the parameter.
  const std::map<std::string, SafetensorsModel::Location>& whole() const { return whole_; }
  // The last parts of the names of all modules, sorted: PEFT's target_modules.
  std::vector<std::string> targets() const;

  // Of a parameter of the model; nullptr: it has none.
  const Matrix* matrix_of(const std::string& parameter) const;
  LowRankUpdate update_of(const Parameter& parameter) const;
  // The tensor of a trained parameter of a model with adapters; empty: it has none.
  SafetensorsModel::Location find(const Parameter& parameter) const;
  // For a run that trains it further. UserError if its modules have different ranks or scales.
  LoraConfig training_config() const;

 private:
  void collect();
  void match(const ModelConfig& model, const std::filesystem::path& base);

  std::filesystem::path directory_;
  PeftConfig config_;
  SafetensorsModel tensors_;
  std::map<std::string, Matrix> matrices_;
  std::map<std::string, SafetensorsModel::Location> whole_;
};

}  // namespace kintsugi
