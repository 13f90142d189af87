#include "model/adapter/model_files.h"

#include "core/error.h"

namespace kintsugi {
namespace fs = std::filesystem;

const fs::path& ModelFiles::tokenizer() const {
  std::error_code ignored;
  for (const char* name : {"tokenizer.json", "tokenizer.model"})
    if (!adapter.empty() && fs::exists(adapter / name, ignored)) return adapter;
  return model;
}

fs::path base_of_adapter(const fs::path& adapter, const PeftConfig& config,
                         std::string_view remedy) {
  if (config.base.empty())
    user_error("{} does not name its base model: {}", (adapter / kAdapterConfig).string(), remedy);
  std::error_code ignored;
  for (const fs::path& path : {fs::path(config.base), adapter / config.base}) {
    if (!fs::is_directory(path, ignored)) continue;
    const fs::path base = model_directory(path);
    if (is_adapter_directory(base))
      user_error(
          "the base of {}, {}, is an adapter itself: merge it first with kintsugi model "
          "merge-adapter",
          adapter.string(), base.string());
    return base;
  }
  user_error("the base model of {}, '{}', is not a directory here: {}", adapter.string(),
             config.base, remedy);
}

ModelFiles find_model(const fs::path& checkpoint, const fs::path& adapter) {
  const fs::path path = model_directory(checkpoint);
  if (adapter.empty()) {
    if (!is_adapter_directory(path)) return {path};
    return {base_of_adapter(path, read_peft_config(path)), path};
  }
  if (is_adapter_directory(path))
    user_error("{} is an adapter itself: give its base model as --checkpoint", path.string());
  const fs::path directory = model_directory(adapter);
  std::error_code ignored;
  if (!fs::exists(directory / kAdapterConfig, ignored))
    user_error("--adapter {} is not an adapter: it has no {}", adapter.string(), kAdapterConfig);
  return {path, directory};
}

}  // namespace kintsugi
