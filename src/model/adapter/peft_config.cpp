#include "model/adapter/peft_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "model/families/config_json.h"
#include "model/parameter_set.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kDeepestLevel = 64;
constexpr std::int64_t kLargestRank = 1 << 16;

// Keys that do not change what the tensors of an adapter mean.
constexpr std::array<std::string_view, 21> kHarmless = {"auto_mapping",
                                                        "base_model_name_or_path",
                                                        "ensure_weight_tying",
                                                        "eva_config",
                                                        "exclude_modules",
                                                        "fan_in_fan_out",
                                                        "inference_mode",
                                                        "layers_pattern",
                                                        "layers_to_transform",
                                                        "loftq_config",
                                                        "lora_dropout",
                                                        "megatron_core",
                                                        "modules_to_save",
                                                        "peft_version",
                                                        "qalora_group_size",
                                                        "r",
                                                        "revision",
                                                        "runtime_config",
                                                        "target_modules",
                                                        "task_type",
                                                        "use_rslora"};
// Keys that are read.
constexpr std::array<std::string_view, 6> kRead = {
    "peft_type", "lora_alpha", "bias", "rank_pattern", "alpha_pattern", "init_lora_weights"};

bool lists(const auto& keys, std::string_view key) {
  return std::ranges::find(keys, key) != keys.end();
}

bool is_off(const json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

json parse_adapter_json(const std::string& text, const std::string& source) {
  const json::parser_callback_t limit = [&](int depth, json::parse_event_t, json&) {
    if (depth > kDeepestLevel)
      user_error("{}: nested deeper than {} levels", source, kDeepestLevel);
    return true;
  };
  try {
    json root = json::parse(text, limit);
    if (!root.is_object()) user_error("{} is not an adapter_config.json: not an object", source);
    return root;
  } catch (const json::exception& error) {
    user_error("{} is not valid JSON: {}", source, error.what());
  }
}

std::string short_text(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() > 40 ? text.substr(0, 40) + "…" : text;
}

std::vector<std::string> names_at(const json& root, const char* key, const std::string& source) {
  std::vector<std::string> names;
  const auto found = root.find(key);
  if (found == root.end() || found->is_null()) return names;
  if (!found->is_array())
    user_error("{}: {} must be a list of names, not {}", source, key, short_text(*found));
  for (const json& name : *found) {
    if (!name.is_string())
      user_error("{}: {} has {}, which is not a name", source, key, short_text(name));
    names.push_back(name.get<std::string>());
  }
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

// PEFT's keys are regular expressions for the end of a module's name. We accept those that are
// plain text: "q_proj", "layers\.0\.self_attn\.q_proj", "^model.layers.0.self_attn.q_proj".
std::string plain_pattern(const std::string& pattern, const char* key, const std::string& source) {
  std::string text;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '^' && i == 0) continue;
    if (c == '$' && i + 1 == pattern.size()) continue;
    if (c == '\\' && i + 1 < pattern.size() && pattern[i + 1] == '.') continue;
    if (std::string_view("\\^$*+?()[]{}|").find(c) != std::string_view::npos)
      user_error("{}: {} has the pattern '{}': only names of modules are supported", source, key,
                 pattern);
    text += c;
  }
  if (text.empty()) user_error("{}: {} has an empty name", source, key);
  return text;
}

template <class Value>
std::map<std::string, Value> patterns_at(const json& root, const char* key,
                                         const std::string& source) {
  std::map<std::string, Value> values;
  const auto found = root.find(key);
  if (found == root.end() || found->is_null()) return values;
  if (!found->is_object())
    user_error("{}: {} must be an object, not {}", source, key, short_text(*found));
  for (const auto& [pattern, value] : found->items()) {
    const ConfigObject one(*found, source, std::string(key) + ".");
    if constexpr (std::is_integral_v<Value>)
      values[plain_pattern(pattern, key, source)] = one.integer({pattern.c_str()});
    else
      values[plain_pattern(pattern, key, source)] = one.real({pattern.c_str()});
  }
  return values;
}

void check_rank(std::int64_t r, const char* key, const std::string& source) {
  if (r < 1 || r > kLargestRank)
    user_error("{}: {} is {}: it must be 1 to {}", source, key, r, kLargestRank);
}

void check_alpha(double alpha, const char* key, const std::string& source) {
  if (!std::isfinite(alpha)) user_error("{}: {} is {}: it must be a number", source, key, alpha);
}

// These initializations leave the base model alone. The others (PiSSA, OLoRA, LoftQ, …) change
// it, so that the adapter belongs to weights that are stored nowhere.
void check_initialization(const json& root, const std::string& source) {
  const auto found = root.find("init_lora_weights");
  if (found == root.end() || found->is_null() || found->is_boolean()) return;
  for (const char* known : {"gaussian", "eva", "orthogonal"})
    if (*found == known) return;
  user_error(
      "{}: init_lora_weights is {}, which changes the base model: convert the adapter to plain "
      "LoRA with PEFT first",
      source, short_text(*found));
}

void check_keys(const json& root, const std::string& source) {
  const ConfigObject object(root, source);
  object.require_text({"peft_type"}, {"LORA"});
  if (!object.has("peft_type")) object.refuse("key 'peft_type' is missing");
  object.require_text({"bias"}, {"none"});
  check_initialization(root, source);
  for (const auto& [key, value] : root.items())
    if (!lists(kHarmless, key) && !lists(kRead, key) && !is_off(value))
      user_error("{}: {} is {}, which is not supported (only plain LoRA)", source, key,
                 short_text(value));
}

bool ends_with_module(std::string_view module, std::string_view end) {
  return module.ends_with(end) &&
         (module.size() == end.size() || module[module.size() - end.size() - 1] == '.');
}

template <class Value>
Value value_of(const std::map<std::string, Value>& values, std::string_view module, Value usual) {
  for (const auto& [end, value] : values)
    if (ends_with_module(module, end)) return value;
  return usual;
}

}  // namespace

std::int64_t PeftConfig::rank_of(std::string_view module) const {
  return value_of(ranks, module, lora.r);
}

double PeftConfig::scale_of(std::string_view module) const {
  LoraConfig one = lora;
  one.r = rank_of(module);
  one.alpha = value_of(alphas, module, lora.alpha);
  return one.scale();
}

PeftConfig parse_peft_config(const std::string& text, const std::string& source) {
  const json root = parse_adapter_json(text, source);
  check_keys(root, source);
  const ConfigObject object(root, source);
  PeftConfig config;
  config.lora.r = object.integer({"r"});
  config.lora.alpha = object.real({"lora_alpha"});
  config.lora.dropout = object.real({"lora_dropout"}, 0);
  config.lora.rslora = object.flag("use_rslora", false);
  check_rank(config.lora.r, "r", source);
  check_alpha(config.lora.alpha, "lora_alpha", source);
  if (!(config.lora.dropout >= 0 && config.lora.dropout < 1))
    object.refuse("lora_dropout is {}: it must be from 0 to below 1", config.lora.dropout);
  const auto targets = root.find("target_modules");
  if (targets == root.end() || !targets->is_string())
    config.lora.targets = names_at(root, "target_modules", source);
  else if (*targets == "all-linear")
    config.lora.targets = {"all-linear"};
  config.lora.train = names_at(root, "modules_to_save", source);
  config.base = object.text({"base_model_name_or_path"}, "");
  config.task_type = object.text({"task_type"}, "");
  config.fan_in_fan_out = object.flag("fan_in_fan_out", false);
  config.ranks = patterns_at<std::int64_t>(root, "rank_pattern", source);
  config.alphas = patterns_at<double>(root, "alpha_pattern", source);
  for (const auto& [name, r] : config.ranks) check_rank(r, "rank_pattern", source);
  for (const auto& [name, alpha] : config.alphas) check_alpha(alpha, "alpha_pattern", source);
  return config;
}

PeftConfig read_peft_config(const fs::path& directory) {
  const fs::path file = directory / kAdapterConfig;
  return parse_peft_config(read_text_file(file), file.string());
}

std::string write_peft_config(const PeftConfig& config) {
  const auto names = [](std::vector<std::string> list) {
    std::ranges::sort(list);
    return list;
  };
  ordered_json root;
  for (const char* key :
       {"alora_invocation_tokens", "arrow_config", "auto_mapping", "corda_config", "eva_config",
        "exclude_modules", "layer_replication", "layers_pattern", "layers_to_transform",
        "megatron_config", "revision", "target_parameters", "trainable_token_indices"})
    root[key] = nullptr;
  for (const char* key : {"lora_bias", "use_dora", "use_qalora"}) root[key] = false;
  root["alpha_pattern"] = config.alphas;
  root["base_model_name_or_path"] =
      config.base.empty() ? ordered_json() : ordered_json(config.base);
  root["bias"] = "none";
  root["fan_in_fan_out"] = config.fan_in_fan_out;
  root["inference_mode"] = true;
  root["init_lora_weights"] = true;
  root["loftq_config"] = ordered_json::object();
  // A whole number is written as PEFT's users write it: 32, not 32.0.
  const double alpha = config.lora.alpha;
  root["lora_alpha"] = alpha == std::floor(alpha) && std::fabs(alpha) < 1e15
                           ? ordered_json(static_cast<std::int64_t>(alpha))
                           : ordered_json(alpha);
  root["lora_dropout"] = config.lora.dropout;
  root["megatron_core"] = "megatron.core";
  root["modules_to_save"] =
      config.lora.train.empty() ? ordered_json() : ordered_json(names(config.lora.train));
  root["peft_type"] = "LORA";
  root["qalora_group_size"] = 16;
  root["r"] = config.lora.r;
  root["rank_pattern"] = config.ranks;
  root["target_modules"] = config.lora.targets == std::vector<std::string>{"all-linear"}
                               ? ordered_json("all-linear")
                               : ordered_json(names(config.lora.targets));
  root["task_type"] = config.task_type.empty() ? ordered_json() : ordered_json(config.task_type);
  root["use_rslora"] = config.lora.rslora;
  json sorted = root;  // by key, as PEFT writes them
  return sorted.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

PeftConfig peft_config_of(const ModelConfig& model, const std::string& base) {
  PeftConfig config{.lora = model.lora, .base = base, .task_type = "CAUSAL_LM"};
  if (!model.labels.empty()) config.task_type = "SEQ_CLS";
  if (!model.labels.empty() && !lists(config.lora.train, "score"))
    config.lora.train.emplace_back("score");
  const bool named = !config.lora.targets.empty() && config.lora.targets.front() != "all-linear";
  std::set<std::string> targets;
  const ParameterSet set(model);
  for (const Parameter& parameter : set.parameters()) {
    // "….q_proj.lora_A.weight"
    if (parameter.group == ParameterGroup::Adapter) {
      const std::string module = parameter.name.substr(0, parameter.name.rfind(".lora_"));
      targets.insert(module.substr(module.rfind('.') + 1));
    } else if (parameter.hidden && parameter.matrices.dimension == 1) {
      config.fan_in_fan_out = true;
    }
  }
  if (!named) config.lora.targets.assign(targets.begin(), targets.end());
  std::ranges::sort(config.lora.targets);
  return config;
}

bool is_adapter_directory(const fs::path& directory) {
  std::error_code ignored;
  return fs::exists(directory / kAdapterConfig, ignored) &&
         !fs::exists(directory / "config.json", ignored);
}

void refuse_adapter(const fs::path& directory) {
  user_error("{} is an adapter, not a complete model: make one with kintsugi model merge-adapter",
             directory.string());
}

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
