#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/units.h"
#include "core/yaml_document.h"
#include "model/adapter/peft_config.h"
#include "model/config.h"
#include "model/embedded_presets.h"
#include "model/model_fields.h"

namespace kintsugi {
namespace {

// Where a key comes from, for messages: the file (or other source) and the path of its parent key.
struct KeyOrigin {
  std::string source;
  std::string prefix;  // "", "model." or "model.rope_scaling."

  std::string at(const YAML::Node& node) const {
    if (!node) return source;             // not given: another key implies it
    const YAML::Mark mark = node.Mark();  // null for nodes that are not from a file (--set)
    return mark.is_null() ? source : fmt::format("{} line {}", source, mark.line + 1);
  }
};

// `where` names the file, the line and the key; the parsers of core/units.h report what is wrong
// with the value.
auto parsed(const YAML::Node& node, const std::string& where, const char* expected, auto parse) {
  if (!node.IsScalar()) user_error("{}: must be {}, not {}", where, expected, in_words(node));
  try {
    return parse(node.Scalar());
  } catch (const UserError& error) {
    user_error("{}: {}", where, error.what());
  }
}

void read_value(std::int64_t& field, const YAML::Node& node, const std::string& where,
                const KeyOrigin&) {
  field = parsed(node, where, "a whole number", parse_count);
}
void read_value(double& field, const YAML::Node& node, const std::string& where, const KeyOrigin&) {
  field = parsed(node, where, "a number", parse_real);
}
void read_value(bool& field, const YAML::Node& node, const std::string& where, const KeyOrigin&) {
  field = parsed(node, where, "true or false", parse_bool);
}
void read_value(Family& field, const YAML::Node& node, const std::string& where, const KeyOrigin&) {
  field = parsed(node, where, "a model family", parse_family);
}
void read_value(RopeScalingKind& field, const YAML::Node& node, const std::string& where,
                const KeyOrigin&) {
  field = parsed(node, where, "llama3 or yarn", parse_rope_scaling);
}
void read_value(std::vector<LayerType>& field, const YAML::Node& node, const std::string& where,
                const KeyOrigin&) {
  if (!node.IsSequence())
    user_error("{}: must be a list like [sliding_attention, full_attention], not {}", where,
               in_words(node));
  field.clear();
  for (const YAML::Node& entry : node)
    field.push_back(parsed(entry, where, "a layer type", parse_layer_type));
}
void read_value(std::vector<std::string>& field, const YAML::Node& node, const std::string& where,
                const KeyOrigin&) {
  if (!node.IsSequence())
    user_error("{}: must be a list like [negative, positive], not {}", where, in_words(node));
  field.clear();
  for (const YAML::Node& entry : node) {
    if (!entry.IsScalar()) user_error("{}: must be a list of names", where);
    field.push_back(entry.Scalar());
  }
}
void read_value(std::vector<std::int64_t>& field, const YAML::Node& node, const std::string& where,
                const KeyOrigin&) {
  if (!node.IsSequence())
    user_error("{}: must be a list like [0, 1], not {}", where, in_words(node));
  field.clear();
  for (const YAML::Node& entry : node)
    field.push_back(parsed(entry, where, "a whole number", parse_count));
}
void read_value(std::optional<RopeScaling>& field, const YAML::Node& node, const std::string& where,
                const KeyOrigin& inside);
void read_value(std::optional<LatentConfig>& field, const YAML::Node& node,
                const std::string& where, const KeyOrigin& inside);
void read_value(std::optional<ExpertsConfig>& field, const YAML::Node& node,
                const std::string& where, const KeyOrigin& inside);

[[noreturn]] void unknown_key(const std::string& where, const KeyOrigin& origin,
                              const std::string& key, const std::vector<std::string>& known) {
  std::string near = synonym_of(key, model_synonyms());
  if (std::ranges::find(known, near) == known.end()) near = nearest_word(key, known);
  if (!near.empty())
    user_error("{}: unknown key '{}{}'; did you mean '{}'?", where, origin.prefix, key, near);
  user_error("{}: unknown key '{}{}'; the keys are {}", where, origin.prefix, key,
             fmt::join(known, ", "));
}

// Sets the fields that the map names. `visit_fields` visits all fields; keys in `others` are
// accepted and left to the caller.
void read_map(const YAML::Node& map, const KeyOrigin& origin,
              const std::vector<std::string>& others, auto visit_fields) {
  std::vector<std::string> known = others;
  visit_fields([&](const char* name, auto&) { known.emplace_back(name); });
  for (const auto& item : map) {
    const std::string line = origin.at(item.first);
    const std::string key = item.first.Scalar();
    if (std::ranges::find(known, key) == known.end()) unknown_key(line, origin, key, known);
    const std::string where = fmt::format("{}: {}{}", line, origin.prefix, key);
    const KeyOrigin inside{origin.source, origin.prefix + key + "."};
    visit_fields([&](const char* name, auto& field) {
      if (key == name) read_value(field, item.second, where, inside);
    });
  }
}

// A part of the description that may be absent: a map like `example`, or null.
template <class Part>
void read_part(std::optional<Part>& field, const YAML::Node& node, const std::string& where,
               const KeyOrigin& inside, const char* example, auto visit_fields) {
  if (node.IsNull()) return field.reset();
  if (!node.IsMap())
    user_error("{}: must be a map like {} or null, not {}", where, example, in_words(node));
  if (!field) field.emplace();
  read_map(node, inside, {}, [&](auto visit) { visit_fields(*field, visit); });
}

void read_value(std::optional<RopeScaling>& field, const YAML::Node& node, const std::string& where,
                const KeyOrigin& inside) {
  read_part(field, node, where, inside, "{factor: 8}",
            [](auto& part, auto visit) { visit_rope_scaling_fields(part, visit); });
}
void read_value(std::optional<LatentConfig>& field, const YAML::Node& node,
                const std::string& where, const KeyOrigin& inside) {
  read_part(field, node, where, inside, "{rank: 512, plain_dim: 128}",
            [](auto& part, auto visit) { visit_latent_fields(part, visit); });
}
void read_value(std::optional<ExpertsConfig>& field, const YAML::Node& node,
                const std::string& where, const KeyOrigin& inside) {
  read_part(field, node, where, inside, "{count: 8, chosen: 2}",
            [](auto& part, auto visit) { visit_experts_fields(part, visit); });
}

void read_fields(const YAML::Node& map, const KeyOrigin& origin,
                 const std::vector<std::string>& others, ModelConfig& config) {
  if (!map.IsMap())
    user_error("{}: a model description is a map of keys like 'layers: 12', not {}", origin.source,
               in_words(map));
  read_map(map, origin, others, [&](auto visit) { visit_model_fields(config, visit); });
}

void complete(ModelConfig& config, const std::string& source) {
  try {
    config.complete_and_check();
  } catch (const UserError& error) {
    user_error("{}: {}", source, error.what());
  }
}

// Parses the fields without computing derived sizes.
ModelConfig parse_fields(const std::string& text, const std::string& source, ModelConfig config) {
  read_fields(load_yaml(text, source), {source, ""}, {}, config);
  return config;
}

// "llama" and 8e9 of "llama-8b"; nothing if no part of the name is a size.
struct SizedName {
  std::string family;
  double parameters = 0;
};
std::optional<SizedName> sized_name(const std::string& name) {
  for (std::size_t dash = name.find('-'); dash != name.npos; dash = name.find('-', dash + 1)) {
    std::string part = name.substr(dash + 1, name.find('-', dash + 1) - dash - 1);
    std::transform(part.begin(), part.end(), part.begin(),
                   [](unsigned char letter) { return std::toupper(letter); });
    if (part.size() < 2 || part[0] < '0' || part[0] > '9' || !std::strchr("MBT", part.back()))
      continue;
    try {
      return SizedName{name.substr(0, dash), static_cast<double>(parse_count(part))};
    } catch (const UserError&) {
    }
  }
  return std::nullopt;
}

// The preset that a name without a preset may mean: of its family the one nearest in size, because
// "llama-6b" differs from "llama-1b" and "llama-8b" by one letter each; otherwise by spelling.
std::string nearest_preset(const std::string& name) {
  const std::vector<std::string> presets = preset_names();
  const std::optional<SizedName> wanted = sized_name(name);
  if (!wanted || wanted->parameters <= 0) return nearest_word(name, presets);
  std::vector<std::string> families;
  for (const std::string& preset : presets)
    if (const auto sized = sized_name(preset)) families.push_back(sized->family);
  const std::string family = nearest_word(wanted->family, families);
  std::string nearest;
  double smallest = std::numeric_limits<double>::infinity();
  for (const std::string& preset : presets) {
    const std::optional<SizedName> sized = sized_name(preset);
    if (!sized || sized->family != family) continue;
    const double distance = std::abs(std::log(sized->parameters / wanted->parameters));
    if (distance < smallest) std::tie(smallest, nearest) = std::pair(distance, preset);
  }
  return nearest;
}

ModelConfig preset_fields(const std::string& name) {
  for (const EmbeddedPreset& preset : embedded_presets())
    if (preset.name == name) return parse_fields(preset.yaml, "preset " + name, {});
  const std::string near = nearest_preset(name);
  user_error("there is no preset '{}'{}; kintsugi model --list shows them all", name,
             near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near));
}

// Keys of a run's model section besides the fields: the base configuration that the fields
// override.
const std::vector<std::string> kBaseKeys = {"preset", "config", "init"};
// All keys besides the fields. The last two belong to the run (train/config).
const std::vector<std::string> kSectionKeys = {"preset", "config", "init", "new_tokens",
                                               "allow_unused_weights"};

// The key of the base configuration; empty: every field is given. `init: null` is the same as no
// init.
std::string base_key(const YAML::Node& section, const KeyOrigin& origin) {
  std::string found;
  for (const std::string& key : kBaseKeys) {
    const YAML::Node base = section[key];
    if (!base || (key == "init" && base.IsNull())) continue;
    if (!found.empty())
      user_error("{}: model.{} and model.{} exclude each other: keep one", origin.at(base), found,
                 key);
    if (!base.IsScalar())
      user_error("{}: model.{} is a name, not {}", origin.at(base), key, in_words(base));
    found = key;
  }
  return found;
}

// A directory with weights is refused: the user may expect that they are loaded.
ModelConfig configuration_only(const std::string& name, const std::string& where) {
  std::error_code ignored;
  if (std::filesystem::is_directory(name, ignored) && holds_weights(model_directory(name)))
    user_error(
        "{}: {} holds weights, which model.config does not load: say model.init to start from "
        "them, or name its config.json file to train from random weights",
        where, name);
  return resolve_model(name);
}

ModelConfig initial_configuration(const std::string& name, const std::string& where,
                                  const std::filesystem::path& checkpoint) {
  try {
    std::error_code ignored;
    if (!std::filesystem::is_directory(name, ignored))
      user_error("there is no directory {}: give a Hugging Face model directory or a checkpoint",
                 name);
    return read_model_directory(name);
  } catch (const UserError& error) {
    if (checkpoint.empty() || is_adapter_directory(checkpoint))
      user_error("{}: model.init: {}", where, error.what());
  }
  return read_hf_config(checkpoint / "config.json");
}

// The fields that may differ from those of the weights in model.init. All others are refused.
bool fits_any_weights(const std::string& field, const ModelConfig& model) {
  static const std::vector<std::string> fields = {"norm_eps",       "rope_theta",  "rope_scaling",
                                                  "sliding_window", "layer_types", "init_std",
                                                  "bos_token",      "eos_token",   "pad_token"};
  if (field == "vocab_size") return true;  // may grow
  if (field == "max_positions") return model.positions() != PositionKind::Learned;
  return std::ranges::find(fields, field) != fields.end();
}

struct Difference {
  std::string field, has, wanted;
};

// The fields with other values that do not fit the stored weights.
std::vector<Difference> differences(const ModelConfig& stored, const ModelConfig& config) {
  const YAML::Node before = YAML::Load(model_to_yaml(stored)),
                   after = YAML::Load(model_to_yaml(config));
  std::vector<Difference> found;
  const bool is_new_classifier = config.is_classifier() && !stored.is_classifier();
  for (const auto& entry : after) {
    const std::string field = entry.first.Scalar();
    const std::string has = YAML::Dump(before[field]), wanted = YAML::Dump(entry.second);
    const bool new_head = is_new_classifier && (field == "labels" || field == "tied");
    if (has != wanted && !new_head && !fits_any_weights(field, stored))
      found.push_back({field, has, wanted});
  }
  return found;
}

void refuse_other_shapes(const ModelConfig& stored, const ModelConfig& config,
                         const YAML::Node& section, const KeyOrigin& origin) {
  for (const auto& [field, has, wanted] : differences(stored, config))
    user_error("{}: model.{} is {}, but the weights in model.init have {}: remove it",
               origin.at(section[field]), field, wanted, has);
  if (config.vocab_size < stored.vocab_size)
    user_error(
        "{}: model.vocab_size is {}, but the weights in model.init have {}: it can grow, but not "
        "shrink; raise it or remove it",
        origin.at(section["vocab_size"]), config.vocab_size, stored.vocab_size);
}

}  // namespace

std::string other_shape(const ModelConfig& stored, const ModelConfig& config) {
  for (const auto& [field, has, wanted] : differences(stored, config))
    return fmt::format("{} is {}, not {}", field, wanted, has);
  if (config.labels != stored.labels)
    return fmt::format("labels is [{}], not [{}]", fmt::join(config.labels, ", "),
                       fmt::join(stored.labels, ", "));
  if (config.vocab_size != stored.vocab_size)
    return fmt::format("vocab_size is {}, not {}", config.vocab_size, stored.vocab_size);
  return "";
}

const std::vector<Synonym>& model_synonyms() {
  static const std::vector<Synonym> all = {
      {"family", {"model_type", "architecture"}},
      {"vocab_size", {"vocabulary_size", "padded_vocab_size", "n_vocab"}},
      {"hidden_size", {"d_model", "n_embd", "dim", "embedding_size"}},
      {"layers", {"num_layers", "num_hidden_layers", "n_layers", "n_layer", "depth"}},
      {"heads", {"num_heads", "num_attention_heads", "n_heads", "n_head"}},
      {"kv_heads", {"num_kv_heads", "num_key_value_heads", "num_query_groups", "n_kv_heads"}},
      {"head_dim", {"kv_channels", "head_size"}},
      {"ffn_size", {"intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner"}},
      {"max_positions", {"max_position_embeddings", "n_positions", "n_ctx"}},
      {"norm_eps", {"rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon"}},
      {"rope_theta", {"rotary_base", "rope_base"}},
      {"tied", {"tie_word_embeddings", "tie_embeddings"}},
      {"init_std", {"initializer_range", "init_method_std"}},
      {"bos_token", {"bos_token_id"}},
      {"eos_token", {"eos_token_id"}},
      {"pad_token", {"pad_token_id"}},
      {"labels", {"id2label"}},
      {"init", {"load_path", "initial_load_path", "init_from", "pretrained", "weights"}},
  };
  return all;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const EmbeddedPreset& preset : embedded_presets()) names.push_back(preset.name);
  return names;
}

ModelConfig load_preset(const std::string& name) {
  ModelConfig config = preset_fields(name);
  complete(config, "preset " + name);
  return config;
}

ModelConfig parse_model_yaml(const std::string& text, const std::string& source, ModelConfig base) {
  ModelConfig config = parse_fields(text, source, std::move(base));
  complete(config, source);
  return config;
}

std::vector<std::string> model_section_keys() {
  std::vector<std::string> keys = kSectionKeys;
  const ModelConfig any;
  visit_model_fields(any, [&](const char* name, const auto&) { keys.emplace_back(name); });
  return keys;
}

ModelConfig read_model_section(const YAML::Node& section, const std::string& source,
                               const std::filesystem::path& checkpoint) {
  const KeyOrigin origin{source, "model."};
  ModelConfig config;
  // Reads once into a temporary configuration, to report wrong keys before the base is loaded.
  read_fields(section, origin, kSectionKeys, config);
  const std::string key = base_key(section, origin);
  const YAML::Node base = section[key];
  if (key == "preset") config = preset_fields(base.Scalar());
  if (key == "config") config = configuration_only(base.Scalar(), origin.at(base));
  if (key == "init") config = initial_configuration(base.Scalar(), origin.at(base), checkpoint);
  const ModelConfig stored = config;
  read_fields(section, origin, kSectionKeys, config);
  if (key == "init") refuse_other_shapes(stored, config, section, origin);
  complete(config, fmt::format("{}: model", source));
  return config;
}

namespace {

template <class T>
const T& in_text(const T& value) {
  return value;
}
std::string_view in_text(RopeScalingKind kind) { return to_string(kind); }

// "{…}" or "null"
template <class Part>
std::string part_to_yaml(const std::optional<Part>& part, auto visit_fields) {
  if (!part) return "null";
  std::string parts;
  visit_fields(*part, [&](const char* key, const auto& value) {
    parts += fmt::format("{}{}: {}", parts.empty() ? "" : ", ", key, in_text(value));
  });
  return "{" + parts + "}";
}

}  // namespace

void read_rope_scaling(const YAML::Node& node, const std::string& source, const std::string& where,
                       const std::string& key, std::optional<RopeScaling>& scaling) {
  read_value(scaling, node, fmt::format("{}: {}", where, key), {source, key + "."});
}

std::string rope_scaling_to_yaml(const std::optional<RopeScaling>& scaling) {
  return part_to_yaml(scaling,
                      [](const auto& part, auto visit) { visit_rope_scaling_fields(part, visit); });
}

std::string model_to_yaml(const ModelConfig& config) {
  std::string text;
  const auto write = [&](const char* name, const auto& field) {
    using Field = std::decay_t<decltype(field)>;
    if constexpr (std::is_same_v<Field, Family>) {
      text += fmt::format("{}: {}\n", name, to_string(field));
    } else if constexpr (std::is_same_v<Field, std::optional<RopeScaling>>) {
      text += fmt::format("{}: {}\n", name, rope_scaling_to_yaml(field));
    } else if constexpr (std::is_same_v<Field, std::optional<ExpertsConfig>>) {
      const auto visit = [](const auto& part, auto each) { visit_experts_fields(part, each); };
      text += fmt::format("{}: {}\n", name, part_to_yaml(field, visit));
    } else if constexpr (std::is_same_v<Field, std::optional<LatentConfig>>) {
      const auto visit = [](const auto& part, auto each) { visit_latent_fields(part, each); };
      text += fmt::format("{}: {}\n", name, part_to_yaml(field, visit));
    } else if constexpr (std::is_same_v<Field, std::vector<LayerType>>) {
      std::vector<std::string_view> types;
      for (const LayerType type : field) types.push_back(to_string(type));
      text += fmt::format("{}: [{}]\n", name, fmt::join(types, ", "));
    } else if constexpr (std::is_same_v<Field, std::vector<std::string>>) {
      std::vector<std::string> quoted;
      for (const std::string& entry : field) quoted.push_back(yaml_quoted(entry));
      text += fmt::format("{}: [{}]\n", name, fmt::join(quoted, ", "));
    } else {
      // fmt writes the shortest digits that read back to the same number.
      text += fmt::format("{}: {}\n", name, field);
    }
  };
  visit_model_fields(config, write);
  return text;
}

}  // namespace kintsugi
