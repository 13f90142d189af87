#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "model/adapter/adapter_parameters.h"
#include "model/initialize.h"
#include "train/engine.h"

namespace kintsugi {

// The weights of a checkpoint: those in its directory, or, if adapters are trained, the trained
// parameters in a PEFT directory and the others in their base model. Throws UserError if they do
// not belong to the engine's model.
class StoredWeights {
 public:
  StoredWeights(FileLoader& loader, const std::filesystem::path& directory, const Engine& engine);
  StoredWeights(const StoredWeights&) = delete;
  StoredWeights& operator=(const StoredWeights&) = delete;

  const ParameterSource& all() const { return *all_; }
  const ParameterSource& trained() const { return *trained_; }

 private:
  void open_adapter(FileLoader& loader, const std::filesystem::path& directory,
                    const Engine& engine);

  std::optional<SafetensorsModel> files_;
  std::optional<StoredAdapter> adapter_;
  std::optional<StoredParameters> stored_;
  std::optional<AdapterParameters> adapters_;
  std::optional<ChosenParameters> chosen_;
  const ParameterSource *all_ = nullptr, *trained_ = nullptr;
};

}  // namespace kintsugi
