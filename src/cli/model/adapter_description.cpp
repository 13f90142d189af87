#include "cli/model/adapter_description.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "cli/model/description.h"
#include "core/log.h"
#include "core/units.h"
#include "model/adapter/stored_adapter.h"
#include "model/stored_model.h"

namespace kintsugi {
namespace {

using AdapterJson = nlohmann::ordered_json;

// The modules that were trained whole: "score", "lm_head".
std::vector<std::string> whole_names(const StoredAdapter& adapter) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : adapter.whole()) names.push_back(name);
  return names;
}

void print_adapter_json(const StoredAdapter& adapter, bool tensors) {
  const PeftConfig& config = adapter.config();
  AdapterJson json = {{"directory", adapter.directory().string()},
                      {"kind", "lora"},
                      {"r", config.lora.r},
                      {"alpha", config.lora.alpha},
                      {"scale", config.lora.scale()},
                      {"rslora", config.lora.rslora},
                      {"dropout", config.lora.dropout},
                      {"targets", adapter.targets()},
                      {"train", whole_names(adapter)},
                      {"modules", adapter.matrices().size()},
                      {"parameters", adapter.elements()},
                      {"task_type", config.task_type},
                      {"base", config.base}};
  for (const std::string& name : adapter.tensors().names()) {
    if (!tensors) break;
    const SafetensorsEntry& entry = *adapter.tensors().find(name).entry;
    json["tensors"].push_back(
        {{"name", name}, {"dtype", entry.dtype_name}, {"shape", entry.shape}});
  }
  fmt::print("{}\n", json.dump(2, ' ', false, AdapterJson::error_handler_t::replace));
}

void print_adapter_text(const StoredAdapter& adapter, bool tensors) {
  const PeftConfig& config = adapter.config();
  fmt::print("{}: LoRA adapter, {} parameters\n\nadapter\n", adapter.directory().string(),
             format_count(static_cast<double>(adapter.elements())));
  const auto row = [](const char* name, const std::string& value) {
    fmt::print("  {:<24}{}\n", name, printable(value));
  };
  const auto list = [](const std::vector<std::string>& names) {
    return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
  };
  row("r", fmt::format("{}{}", config.lora.r,
                       config.ranks.empty() ? "" : ", other ranks for some modules"));
  row("alpha", fmt::format("{}{}", config.lora.alpha,
                           config.alphas.empty() ? "" : ", other values for some modules"));
  row("scale", fmt::format("{:.6g}{}", config.lora.scale(),
                           config.lora.rslora ? " = alpha / sqrt(r)" : " = alpha / r"));
  row("dropout", fmt::format("{}", config.lora.dropout));
  row("targets", list(adapter.targets()));
  row("trained whole", list(whole_names(adapter)));
  row("matrices", grouped(std::ssize(adapter.matrices())));
  row("parameters", grouped(adapter.elements()));
  row("task", config.task_type.empty() ? "unknown" : config.task_type);
  row("base model", config.base.empty() ? "unknown" : config.base);
  if (!tensors) return;
  fmt::print("\ntensors\n");
  for (const std::string& name : adapter.tensors().names()) {
    const SafetensorsEntry& entry = *adapter.tensors().find(name).entry;
    fmt::print("  {}  {}  [{}]\n", printable(name), entry.dtype_name, fmt::join(entry.shape, ", "));
  }
}

}  // namespace

void print_adapter(const std::filesystem::path& directory, bool as_json, bool tensors) {
  const StoredAdapter adapter(directory);
  (as_json ? print_adapter_json : print_adapter_text)(adapter, tensors);
}

}  // namespace kintsugi
