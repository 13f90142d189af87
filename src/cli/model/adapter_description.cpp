#include "cli/model/adapter_description.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "cli/model/description.h"
#include "core/log.h"
#include "core/table.h"
#include "core/units.h"
#include "model/adapter/stored_adapter.h"
#include "model/files/stored_model.h"

namespace kintsugi {
namespace {

using AdapterJson = nlohmann::ordered_json;

// The modules that were trained whole: "score", "lm_head".
std::vector<std::string> whole_names(const StoredAdapter& adapter) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : adapter.whole()) names.push_back(name);
  return names;
}

Table tensor_table(const StoredAdapter& adapter) {
  Table table({Column::text("", "name"), Column::text("", "dtype"), Column::text("", "shape")});
  for (const std::string& name : adapter.tensors().names()) {
    const SafetensorsEntry& entry = *adapter.tensors().find(name).entry;
    table.add(
        {name, entry.dtype_name, {entry.shape, fmt::format("[{}]", fmt::join(entry.shape, ", "))}});
  }
  return table;
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
  if (tensors) json["tensors"] = tensor_table(adapter).json();
  fmt::print("{}", json_lines(json));
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
  if (tensors) fmt::print("\ntensors\n{}", tensor_table(adapter).text({.indent = 2}));
}

}  // namespace

void print_adapter(const std::filesystem::path& directory, bool as_json, bool tensors) {
  const StoredAdapter adapter(directory);
  (as_json ? print_adapter_json : print_adapter_text)(adapter, tensors);
}

}  // namespace kintsugi
