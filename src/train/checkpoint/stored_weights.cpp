#include "train/checkpoint/stored_weights.h"

#include "core/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/history.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

void check_adapter_settings(const StoredAdapter& adapter, const LoraConfig& wanted) {
  const LoraConfig saved = adapter.training_config();
  const auto text = [](const LoraConfig& lora) {
    return fmt::format("r {}, alpha {:g}{}", lora.r, lora.alpha, lora.rslora ? ", rslora" : "");
  };
  if (text(saved) != text(wanted))
    user_error(
        "the checkpoint {} has adapters of {}, and `adapter:` asks for {}: restore these keys, or "
        "start a new run with adapter.init",
        adapter.directory().string(), text(saved), text(wanted));
}

}  // namespace

StoredWeights::StoredWeights(FileLoader& loader, const fs::path& directory, const Engine& engine) {
  if (engine.options().model.lora.on()) {
    open_adapter(loader, directory, engine);
    return;
  }
  files_.emplace(directory);
  stored_.emplace(loader, *files_, engine.parameters());
  all_ = trained_ = &*stored_;
}

void StoredWeights::open_adapter(FileLoader& loader, const fs::path& directory,
                                 const Engine& engine) {
  const EngineOptions& options = engine.options();
  files_.emplace(options.base);
  adapter_.emplace(directory, options.model, options.base);
  check_adapter_settings(*adapter_, options.model.lora);
  stored_.emplace(loader, *files_, engine.parameters(), "",
                  [](const Parameter& parameter) { return !parameter.trained; });
  adapters_.emplace(loader, *adapter_, options.model);
  chosen_.emplace([this](const Parameter& parameter) -> const ParameterSource& {
    if (parameter.trained) return *adapters_;
    return *stored_;
  });
  all_ = &*chosen_;
  trained_ = &*adapters_;
}

void check_saved_model(const fs::path& checkpoint, const ModelConfig& model) {
  const bool adapter = is_adapter_directory(checkpoint);
  if (adapter && !model.lora.on())
    user_error(
        "the checkpoint {} holds an adapter: give the keys of `adapter:` that it was trained with, "
        "or merge it with kintsugi model merge-adapter and start from that with model.init",
        checkpoint.string());
  if (!adapter && model.lora.on())
    user_error(
        "the checkpoint {} holds a complete model, and `adapter:` asks for adapters: start a new "
        "run from it with model.init",
        checkpoint.string());
  if (!adapter) check_shapes(read_hf_config(checkpoint / "config.json"), model, checkpoint);
}

}  // namespace kintsugi
