#include "cli/model/description.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>

#include "core/log.h"
#include "core/table.h"
#include "core/units.h"
#include "model/adapter/stored_adapter.h"
#include "model/model_fields.h"

namespace kintsugi {
namespace {

std::string field_text(std::int64_t value) { return value < 0 ? "none" : grouped(value); }
std::string field_text(double value) { return fmt::format("{}", value); }
std::string field_text(bool value) { return value ? "yes" : "no"; }
std::string field_text(Family value) { return std::string(to_string(value)); }
std::string field_text(const std::optional<RopeScaling>& value) {
  return value ? fmt::format("{} x {}", to_string(value->type), value->factor) : "none";
}
std::string field_text(const std::optional<LatentConfig>& value) {
  return value ? fmt::format("{} + {}", value->rank, value->rotary_dim) : "none";
}
std::string field_text(const std::optional<ExpertsConfig>& value) {
  return value ? fmt::format("{} of {}", value->chosen, value->count) : "none";
}
std::string field_text(const std::vector<LayerType>& value) {
  if (value.empty()) return "all full";
  std::string text;
  for (const LayerType type : value) text += type == LayerType::Full ? 'F' : 'S';
  return text;
}
std::string field_text(const std::vector<std::string>& value) {
  std::string text;
  for (const std::string& entry : value) text += (text.empty() ? "" : ", ") + printable(entry);
  return text;
}

}  // namespace

std::string grouped(std::int64_t value) {
  std::string digits = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

std::string dimensions_table(const ModelConfig& config) {
  std::string text;
  const bool rotary = config.positions() == PositionKind::Rope;
  const bool windows = config.sliding_window > 0, values = config.value_size > 0;
  visit_model_fields(config, [&](std::string_view name, const auto& field) {
    if (!rotary && name.starts_with("rope_")) return;
    if (!windows && (name == "sliding_window" || name == "layer_types")) return;
    if (!values && name == "value_size") return;
    if (!config.latent && name == "latent") return;
    if (!config.experts && name == "experts") return;
    if (!config.qk_norm && name == "qk_norm") return;
    if (!config.is_classifier() && (name == "labels" || name == "pad_token")) return;
    text += fmt::format("  {:<24}{:>20}\n", name, field_text(field));
  });
  return text;
}

nlohmann::ordered_json config_json(const ModelConfig& model) {
  using nlohmann::ordered_json;
  ordered_json config;
  visit_model_fields(model, [&](const char* name, const auto& field) {
    using Field = std::decay_t<decltype(field)>;
    if constexpr (std::is_same_v<Field, Family>) {
      config[name] = to_string(field);
    } else if constexpr (std::is_same_v<Field, std::optional<RopeScaling>>) {
      config[name] = nullptr;
      if (field)
        visit_rope_scaling_fields(*field, [&](const char* key, const auto& value) {
          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, RopeScalingKind>)
            config[name][key] = to_string(value);
          else
            config[name][key] = value;
        });
    } else if constexpr (std::is_same_v<Field, std::optional<LatentConfig>>) {
      config[name] = nullptr;
      if (field)
        visit_latent_fields(*field,
                            [&](const char* key, const auto& value) { config[name][key] = value; });
    } else if constexpr (std::is_same_v<Field, std::optional<ExpertsConfig>>) {
      config[name] = nullptr;
      if (field)
        visit_experts_fields(
            *field, [&](const char* key, const auto& value) { config[name][key] = value; });
    } else if constexpr (std::is_same_v<Field, std::vector<LayerType>>) {
      config[name] = ordered_json::array();
      for (const LayerType type : field) config[name].push_back(to_string(type));
    } else {
      config[name] = field;
    }
  });
  return config;
}

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
