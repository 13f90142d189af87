#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/units.h"
#include "model/config.h"

namespace YAML {
class Node;
}

namespace kintsugi {

// The only list of the fields of a model description: used to read, write and print them and to
// check keys. Calls visit(name, field) for each field; fields are const if the configuration is.
template <class Config, class Visit>
void visit_model_fields(Config& config, Visit&& visit) {
  visit("family", config.family);
  visit("vocab_size", config.vocab_size);
  visit("hidden_size", config.hidden_size);
  visit("layers", config.layers);
  visit("heads", config.heads);
  visit("kv_heads", config.kv_heads);
  visit("head_dim", config.head_dim);
  visit("ffn_size", config.ffn_size);
  visit("latent", config.latent);
  visit("experts", config.experts);
  visit("value_size", config.value_size);
  visit("qk_norm", config.qk_norm);
  visit("max_positions", config.max_positions);
  visit("norm_eps", config.norm_eps);
  visit("rope_theta", config.rope_theta);
  visit("rope_scaling", config.rope_scaling);
  visit("sliding_window", config.sliding_window);
  visit("layer_types", config.layer_types);
  visit("tied", config.tied);
  visit("init_std", config.init_std);
  visit("bos_token", config.bos_token);
  visit("eos_token", config.eos_token);
  visit("pad_token", config.pad_token);
  visit("labels", config.labels);
}

template <class Scaling, class Visit>
void visit_rope_scaling_fields(Scaling& scaling, Visit&& visit) {
  // When reading, all keys are accepted; when writing, only those of the scaling type.
  const bool all = !std::is_const_v<Scaling>;
  visit("type", scaling.type);
  visit("factor", scaling.factor);
  visit("original_max_positions", scaling.original_max_positions);
  if (all || scaling.type == RopeScalingKind::Llama3) {
    visit("low_freq_factor", scaling.low_freq_factor);
    visit("high_freq_factor", scaling.high_freq_factor);
  }
  if (all || scaling.type == RopeScalingKind::Yarn) {
    visit("beta_fast", scaling.beta_fast);
    visit("beta_slow", scaling.beta_slow);
    visit("attention_factor", scaling.attention_factor);
    visit("mscale", scaling.mscale);
    visit("mscale_all_dim", scaling.mscale_all_dim);
  }
}

template <class Latent, class Visit>
void visit_latent_fields(Latent& latent, Visit&& visit) {
  visit("query_rank", latent.query_rank);
  visit("rank", latent.rank);
  visit("plain_dim", latent.plain_dim);
  visit("rotary_dim", latent.rotary_dim);
  visit("value_dim", latent.value_dim);
}

template <class Experts, class Visit>
void visit_experts_fields(Experts& experts, Visit&& visit) {
  visit("count", experts.count);
  visit("chosen", experts.chosen);
  visit("size", experts.size);
  visit("shared", experts.shared);
  visit("dense_layers", experts.dense_layers);
  visit("normalize", experts.normalize);
  visit("scale", experts.scale);
  visit("groups", experts.groups);
  visit("top_groups", experts.top_groups);
}

// Reads the `model:` section of a run configuration: {preset: NAME}, {config: FILE or DIR} or
// {init: DIR}, with any field as an override; with `init`, only fields that fit its weights.
// Derived sizes are computed after the overrides. The result is complete and checked. UserError
// names the key, the source and the line. The section must come from load_yaml
// (core/yaml_document.h), which checks for duplicate keys. `checkpoint` is the directory of the
// run's own checkpoint, if it has one: it replaces an `init` that can no longer be read.
ModelConfig read_model_section(const YAML::Node& section, const std::string& source,
                               const std::filesystem::path& checkpoint = {});

// Returns the first field in which the weights of the two models differ in shape or meaning, as
// "layers is 4, not 2" (of `config` and of `stored`); empty: the weights fit. Fields that may
// differ are those that may differ from model.init, except the vocabulary.
std::string other_shape(const ModelConfig& stored, const ModelConfig& config);

// The rope scaling outside of a `model:` section. `where` names the place and `key` the dotted key.
void read_rope_scaling(const YAML::Node& node, const std::string& source, const std::string& where,
                       const std::string& key, std::optional<RopeScaling>& scaling);
std::string rope_scaling_to_yaml(const std::optional<RopeScaling>& scaling);  // "{…}" or "null"

// The keys that read_model_section accepts.
std::vector<std::string> model_section_keys();

// Names that other programs use for some of the fields.
const std::vector<Synonym>& model_synonyms();

// Every field, one per line; parse_model_yaml and read_model_section read it back to an equal
// configuration.
std::string model_to_yaml(const ModelConfig& config);

}  // namespace kintsugi
