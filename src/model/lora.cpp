#include "model/lora.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/error.h"

namespace kintsugi {
namespace {

constexpr std::string_view kAllLinear = "all-linear";

std::string module_of(std::string_view parameter) {
  return std::string(parameter.substr(0, parameter.rfind('.')));
}

// PEFT's rule: the whole name of the module, or its last parts.
bool names_module(std::string_view target, std::string_view module) {
  return module == target || (module.size() > target.size() && module.ends_with(target) &&
                              module[module.size() - target.size() - 1] == '.');
}

bool names_module(const std::vector<std::string>& targets, std::string_view module) {
  return std::ranges::any_of(
      targets, [&](const std::string& target) { return names_module(target, module); });
}

// Calls f(use) for each matmul of a block.
void for_each_linear(ModelSpec& model, const auto& f) {
  for (LayerSpec& layer : model.layers)
    for (const LinearUse& use : layer.linears()) f(use);
}

// Whether the text matches a pattern in which * stands for any text and ? for any character.
bool matches(std::string_view pattern, std::string_view text) {
  constexpr std::size_t kNone = std::string_view::npos;
  std::size_t p = 0, star = kNone, resume = 0;
  for (std::size_t t = 0; t < text.size();) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t]) && pattern[p] != '*') {
      ++p, ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++, resume = t;
    } else if (star != kNone) {
      p = star + 1, t = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == kNone;
}

bool matches_parameter(std::string_view pattern, std::string_view name) {
  return matches(pattern, name) || matches(pattern, module_of(name));
}

std::string last_part(std::string_view module) {
  return std::string(module.substr(module.rfind('.') + 1));
}

// Experts are computed together, in rows whose order depends on the layout: random numbers that are
// the same in every layout would have to travel with the tokens.
void check_adapters_of_experts(const LinearUse& use) {
  const AdapterSpec& adapters = use.linear->adapters;
  if (use.experts == 0 || !adapters.any()) return;
  const std::vector<std::string>& weights = use.linear->weights;
  const std::size_t each = weights.size() / static_cast<std::size_t>(use.experts);
  for (std::size_t i = each; i < weights.size(); ++i) {
    const std::string module = module_of(weights[i]), first = module_of(weights[i % each]);
    if (adapters.names[i].empty() != adapters.names[i % each].empty())
      user_error(
          "adapter.targets names only one of {} and {}, but all experts of a layer have the same "
          "adapters: name {}",
          first, module, last_part(module));
  }
  if (adapters.dropout > 0)
    user_error(
        "adapter.dropout is {}, but adapters of experts have no dropout: set it to 0, or name "
        "matrices outside of the experts in adapter.targets",
        adapters.dropout);
}

void check_targets(const ModelConfig& config) {
  ModelSpec model = model_spec(config);
  std::set<std::string> modules;  // their last parts
  std::vector<std::string> missing = config.lora.targets;
  for_each_linear(model, [&](const LinearUse& use) {
    for (const std::string& weight : use.linear->weights) {
      const std::string module = module_of(weight);
      modules.insert(last_part(module));
      std::erase_if(missing, [&](const std::string& target) {
        return target == kAllLinear || names_module(target, module);
      });
    }
  });
  if (!missing.empty())
    user_error("adapter.targets: the model has no matrix named {}: it has {}, or use all-linear",
               missing.front(), fmt::join(modules, ", "));
  for_each_linear(model, check_adapters_of_experts);
}

}  // namespace

void add_adapters(ModelSpec& model, const LoraConfig& lora) {
  if (!lora.on()) return;
  const bool all = std::ranges::find(lora.targets, kAllLinear) != lora.targets.end();
  for_each_linear(model, [&](const LinearUse& use) {
    LinearSpec& linear = *use.linear;
    const auto by_default = [&](std::size_t i) {
      return std::ranges::find(use.adapted, i) != use.adapted.end();
    };
    AdapterSpec adapters{.r = lora.r, .scale = lora.scale(), .dropout = lora.dropout};
    bool any = false;
    for (std::size_t i = 0; i < linear.weights.size(); ++i) {
      const std::string module = module_of(linear.weights[i]);
      const bool chosen =
          lora.targets.empty() ? by_default(i) : all || names_module(lora.targets, module);
      adapters.names.push_back(chosen ? std::string(kAdapterPrefix) + module : "");
      any = any || chosen;
    }
    if (any) linear.adapters = std::move(adapters);
  });
}

bool is_frozen(const ModelConfig& config, const Parameter& parameter) {
  const std::string& name = parameter.name;
  if (std::ranges::any_of(config.freeze, [&](const std::string& pattern) {
        return matches_parameter(pattern, name);
      }))
    return true;
  if (!config.lora.on() || parameter.group == ParameterGroup::Adapter) return false;
  if (!config.labels.empty() && parameter.group == ParameterGroup::Head) return false;
  return !names_module(config.lora.train, module_of(name));
}

bool is_trained(const ModelConfig& config, const Parameter& parameter) {
  return !parameter.wide && !is_frozen(config, parameter);
}

int first_trained_layer(const ModelConfig& config) {
  if (config.freeze.empty() && !config.lora.on()) return -1;
  int first = static_cast<int>(config.layers);
  const ParameterSet set(config);
  for (const Bucket& bucket : set.buckets()) {
    if (!bucket.trained) continue;
    if (bucket.role == Bucket::Role::Embedding) return -1;
    if (bucket.role == Bucket::Role::Block) first = std::min(first, bucket.layer);
  }
  return first;
}

void check_trained(const ModelConfig& config) {
  check_targets(config);  // before a layer declares its adapters
  const ParameterSet set(config);
  const auto& all = set.parameters();
  for (const std::string& pattern : config.freeze)
    if (std::ranges::none_of(all, [&](const Parameter& parameter) {
          return matches_parameter(pattern, parameter.name);
        }))
      user_error(
          "freeze: no parameter is named {}: give names or patterns such as model.embed_tokens or "
          "model.layers.0.* (`kintsugi model inspect DIR` lists them)",
          pattern);
  for (const std::string& module : config.lora.train)
    if (std::ranges::none_of(all, [&](const Parameter& parameter) {
          return names_module(module, module_of(parameter.name));
        }))
      user_error("adapter.train: the model has no module named {}", module);
  // A checkpoint with adapters has only what is trained, and the base model has neither of these.
  for (const Parameter& parameter : all)
    if (config.lora.on() && !parameter.trained &&
        (parameter.group == ParameterGroup::Adapter || parameter.name == kScoreTable))
      user_error("freeze matches {}, which `adapter:` trains: name parameters of the model itself",
                 parameter.name);
  for (std::size_t i = 1; i < all.size(); ++i)
    if (all[i].packed && all[i].trained != all[i - 1].trained && config.lora.on())
      user_error(
          "adapter.train: {} is trained and {} is not, but they are computed as one matrix: name "
          "all of them or none",
          all[all[i].trained ? i : i - 1].name, all[all[i].trained ? i - 1 : i].name);
    else if (all[i].packed && all[i].trained != all[i - 1].trained)
      user_error(
          "freeze: {} is frozen and {} is not, but they are computed as one matrix: freeze all of "
          "them or none",
          all[all[i].trained ? i - 1 : i].name, all[all[i].trained ? i : i - 1].name);
  if (std::ranges::none_of(all, [](const Parameter& p) { return p.trained; }))
    user_error("freeze matches every parameter, so there is nothing to train: remove a pattern");
}

}  // namespace kintsugi
