#include <fmt/ranges.h>

#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "model/config.h"

// config.json of a Hugging Face model directory: the keys of transformers 4 and 5 are read, those
// of 4 are written.

namespace kintsugi {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Names = std::initializer_list<const char*>;  // the same key under its older or newer names

// One JSON object, asked for by key; every complaint names the file and the key. A null counts as
// absent.
class Object {
 public:
  Object(const json& object, std::string source, std::string prefix = "")
      : object_(object), source_(std::move(source)), prefix_(std::move(prefix)) {}

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    user_error("{}: {}", source_, fmt::format(format, std::forward<Args>(args)...));
  }

  bool has(const char* name) const { return find({name}).value != nullptr; }

  std::int64_t integer(Names names) const { return required(names, as_integer(find(names))); }
  std::int64_t integer(Names names, std::int64_t absent) const {
    return as_integer(find(names)).value_or(absent);
  }
  double real(Names names) const { return required(names, as_real(find(names))); }
  double real(Names names, double absent) const { return as_real(find(names)).value_or(absent); }

  bool flag(const char* name, bool absent) const {
    const Found found = find({name});
    if (!found.value) return absent;
    if (!found.value->is_boolean()) wrong_type(found, "true or false");
    return found.value->get<bool>();
  }

  std::string text(Names names, const std::string& absent) const {
    const Found found = find(names);
    if (!found.value) return absent;
    if (!found.value->is_string()) wrong_type(found, "a string");
    return found.value->get<std::string>();
  }

  // The object under a key; an empty one when it is absent.
  Object object(const char* name) const {
    static const json empty = json::object();
    const Found found = find({name});
    if (found.value && !found.value->is_object()) wrong_type(found, "an object");
    return {found.value ? *found.value : empty, source_, fmt::format("{}{}.", prefix_, name)};
  }

  // An id, a list of ids (the first is taken) or none. transformers writes a family's usual ids
  // even beside a smaller vocabulary: an id that can never occur is none.
  std::int64_t token(const char* name, std::int64_t vocab_size) const {
    Found found = find({name});
    if (found.value && found.value->is_array()) {
      if (found.value->empty()) return -1;
      found.value = &found.value->front();
    }
    const std::int64_t id = as_integer(found).value_or(-1);
    return id >= 0 && id < vocab_size ? id : -1;
  }

  // Settings whose other value is another model.
  void require_flag(const char* name, bool supported) const {
    if (flag(name, supported) != supported)
      refuse("{}{} is {}, which is not supported (only {})", prefix_, name, !supported, supported);
  }
  void require_text(Names names, Names supported) const {
    const std::string value = text(names, *supported.begin());
    if (std::find(supported.begin(), supported.end(), value) == supported.end())
      refuse("{}{} is '{}', which is not supported (only {})", prefix_, *names.begin(), value,
             fmt::join(supported, ", "));
  }

  // Every entry of the list under a key must be this word.
  void require_all(const char* name, const char* supported) const {
    const Found found = find({name});
    if (!found.value) return;
    if (!found.value->is_array()) wrong_type(found, "a list");
    for (const json& entry : *found.value)
      if (entry != supported)
        refuse("{}{} holds {}, which is not supported (only {})", prefix_, name, entry.dump(),
               supported);
  }

 private:
  struct Found {
    const char* name;
    const json* value;  // none when absent or null
  };

  Found find(Names names) const {
    for (const char* name : names)
      if (const auto it = object_.find(name); it != object_.end() && !it->is_null())
        return {name, &*it};
    return {*names.begin(), nullptr};
  }

  [[noreturn]] void wrong_type(const Found& found, const char* wanted) const {
    std::string value = found.value->dump();
    if (value.size() > 40) value = value.substr(0, 40) + "…";
    refuse("{}{} must be {}, not {}", prefix_, found.name, wanted, value);
  }

  std::optional<std::int64_t> as_integer(const Found& found) const {
    if (!found.value) return std::nullopt;
    constexpr auto largest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (!found.value->is_number_integer() ||
        (found.value->is_number_unsigned() && found.value->get<std::uint64_t>() > largest))
      wrong_type(found, "a whole number");
    return found.value->get<std::int64_t>();
  }

  std::optional<double> as_real(const Found& found) const {
    if (!found.value) return std::nullopt;
    if (!found.value->is_number()) wrong_type(found, "a number");
    return found.value->get<double>();
  }

  template <class T>
  T required(Names names, const std::optional<T>& value) const {
    if (!value) refuse("key '{}{}' is missing", prefix_, fmt::join(names, "' or '"));
    return *value;
  }

  const json& object_;
  std::string source_;
  std::string prefix_;
};

// Version 4 has rope_theta and rope_scaling, version 5 has both inside rope_parameters.
void read_rotation(const Object& root, ModelConfig& config) {
  const Object old_form = root.object("rope_scaling");
  const Object new_form = root.object("rope_parameters");
  const bool old_given = root.has("rope_scaling");
  const Object& rope = old_given ? old_form : new_form;
  config.rope_theta = new_form.real(
      {"rope_theta"}, old_form.real({"rope_theta"}, root.real({"rope_theta"}, 10000.0)));
  for (const Object* place : {&root, &rope})
    if (const double share = place->real({"partial_rotary_factor"}, 1.0); share != 1.0)
      root.refuse("partial_rotary_factor is {}, which is not supported (only 1)", share);

  rope.require_text({"rope_type", "type"}, {"default", "llama3"});
  if (rope.text({"rope_type", "type"}, "default") == "default") return;
  config.rope_scaling = RopeScaling{
      .factor = rope.real({"factor"}),
      .low_freq_factor = rope.real({"low_freq_factor"}),
      .high_freq_factor = rope.real({"high_freq_factor"}),
      .original_max_positions = rope.integer({"original_max_position_embeddings"}),
  };
}

void read_llama_like(const Object& root, ModelConfig& config) {
  root.require_text({"hidden_act"}, {"silu", "swish"});
  if (config.family != Family::Qwen2)
    root.require_flag("attention_bias", false);  // Qwen2 does not read it
  root.require_flag("mlp_bias", false);
  root.require_flag("use_sliding_window", false);
  root.require_all("layer_types", "full_attention");
  config.vocab_size = root.integer({"vocab_size"});
  config.hidden_size = root.integer({"hidden_size"});
  config.layers = root.integer({"num_hidden_layers"});
  config.heads = root.integer({"num_attention_heads"});
  config.kv_heads = root.integer({"num_key_value_heads"}, 0);
  // Qwen3's default is 128 whatever the other sizes are.
  config.head_dim = root.integer({"head_dim"}, config.family == Family::Qwen3 ? 128 : 0);
  config.ffn_size = root.integer({"intermediate_size"});
  config.max_positions =
      root.integer({"max_position_embeddings"}, config.family == Family::Llama ? 2048 : 32768);
  config.norm_eps = root.real({"rms_norm_eps"}, 1e-6);
  config.tied = root.flag("tie_word_embeddings", false);
  read_rotation(root, config);
}

void read_gpt2(const Object& root, ModelConfig& config) {
  root.require_text({"activation_function"}, {"gelu_new", "gelu_pytorch_tanh"});
  root.require_flag("scale_attn_weights", true);
  root.require_flag("scale_attn_by_inverse_layer_idx", false);
  root.require_flag("add_cross_attention", false);
  config.vocab_size = root.integer({"vocab_size"});
  config.hidden_size = root.integer({"n_embd", "hidden_size"});
  config.layers = root.integer({"n_layer", "num_hidden_layers"});
  config.heads = root.integer({"n_head", "num_attention_heads"});
  config.ffn_size = root.integer({"n_inner"}, 0);
  config.max_positions = root.integer({"n_positions", "max_position_embeddings"});
  config.norm_eps = root.real({"layer_norm_epsilon"}, 1e-5);
  config.tied = root.flag("tie_word_embeddings", true);
}

void read_bloom(const Object& root, ModelConfig& config) {
  root.require_flag("apply_residual_connection_post_layernorm", false);
  config.vocab_size = root.integer({"vocab_size"});
  config.hidden_size = root.integer({"hidden_size", "n_embed"});
  config.layers = root.integer({"n_layer", "num_hidden_layers"});
  config.heads = root.integer({"n_head", "num_attention_heads"});
  config.ffn_size = root.integer({"n_inner"}, 0);
  config.max_positions = root.integer({"seq_length"}, 2048);  // ALiBi has no limit of its own
  config.norm_eps = root.real({"layer_norm_epsilon"}, 1e-5);
  config.tied = root.flag("tie_word_embeddings", true);
}

const char* architecture(Family family) {
  switch (family) {
    case Family::Gpt2:
      return "GPT2LMHeadModel";
    case Family::Llama:
      return "LlamaForCausalLM";
    case Family::Qwen2:
      return "Qwen2ForCausalLM";
    case Family::Qwen3:
      return "Qwen3ForCausalLM";
    case Family::Bloom:
      return "BloomForCausalLM";
  }
  return "?";
}

const char* torch_name(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return "float64";
    case DType::F32:
      return "float32";
    case DType::BF16:
      return "bfloat16";
    case DType::F16:
      return "float16";
    default:
      failure("a model cannot be stored as {}", to_string(dtype));
  }
}

ordered_json token_or_null(std::int64_t token) {
  return token < 0 ? ordered_json() : ordered_json(token);
}

void write_llama_like(const ModelConfig& config, ordered_json& root) {
  root["vocab_size"] = config.vocab_size;
  root["hidden_size"] = config.hidden_size;
  root["intermediate_size"] = config.ffn_size;
  root["num_hidden_layers"] = config.layers;
  root["num_attention_heads"] = config.heads;
  root["num_key_value_heads"] = config.kv_heads;
  root["head_dim"] = config.head_dim;
  root["hidden_act"] = "silu";
  root["max_position_embeddings"] = config.max_positions;
  root["initializer_range"] = config.init_std;
  root["rms_norm_eps"] = config.norm_eps;
  root["use_cache"] = true;
  root["pad_token_id"] = nullptr;
  root["bos_token_id"] = token_or_null(config.bos_token);
  root["eos_token_id"] = token_or_null(config.eos_token);
  root["tie_word_embeddings"] = config.tied;
  root["attention_dropout"] = 0.0;
  if (config.family == Family::Llama) {
    root["pretraining_tp"] = 1;
    root["mlp_bias"] = false;
  } else {
    root["use_sliding_window"] = false;
    root["sliding_window"] = nullptr;
    root["max_window_layers"] = config.layers;
  }
  if (config.family != Family::Qwen2) root["attention_bias"] = false;
  root["rope_theta"] = config.rope_theta;
  root["rope_scaling"] = nullptr;
  if (const auto& scaling = config.rope_scaling)
    root["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", scaling->factor},
                            {"low_freq_factor", scaling->low_freq_factor},
                            {"high_freq_factor", scaling->high_freq_factor},
                            {"original_max_position_embeddings", scaling->original_max_positions}};
}

void write_gpt2(const ModelConfig& config, ordered_json& root) {
  root["vocab_size"] = config.vocab_size;
  root["n_embd"] = config.hidden_size;
  root["n_head"] = config.heads;
  root["n_layer"] = config.layers;
  root["n_positions"] = config.max_positions;
  root["n_inner"] =
      config.ffn_size == 4 * config.hidden_size ? ordered_json() : ordered_json(config.ffn_size);
  root["activation_function"] = "gelu_new";
  root["layer_norm_epsilon"] = config.norm_eps;
  for (const char* name : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) root[name] = 0.0;
  root["scale_attn_weights"] = true;
  root["scale_attn_by_inverse_layer_idx"] = false;
  root["reorder_and_upcast_attn"] = false;
  root["initializer_range"] = config.init_std;
  root["use_cache"] = true;
  root["bos_token_id"] = token_or_null(config.bos_token);
  root["eos_token_id"] = token_or_null(config.eos_token);
  root["tie_word_embeddings"] = config.tied;
}

void write_bloom(const ModelConfig& config, ordered_json& root) {
  root["vocab_size"] = config.vocab_size;
  root["hidden_size"] = config.hidden_size;
  root["n_layer"] = config.layers;
  root["n_head"] = config.heads;
  root["seq_length"] = config.max_positions;
  root["layer_norm_epsilon"] = config.norm_eps;
  root["initializer_range"] = config.init_std;
  root["apply_residual_connection_post_layernorm"] = false;
  root["hidden_dropout"] = 0.0;
  root["attention_dropout"] = 0.0;
  root["pretraining_tp"] = 1;
  root["slow_but_exact"] = false;
  root["use_cache"] = true;
  root["pad_token_id"] = nullptr;
  root["bos_token_id"] = token_or_null(config.bos_token);
  root["eos_token_id"] = token_or_null(config.eos_token);
  root["tie_word_embeddings"] = config.tied;
}

json parse_object(const std::string& text, const std::string& source) {
  json root;
  try {
    root = json::parse(text);
  } catch (const json::exception& error) {
    std::string_view reason =
        error.what();  // "[json.exception.parse_error.101] parse error at line …"
    if (const auto end = reason.find("] "); end != std::string_view::npos)
      reason.remove_prefix(end + 2);
    user_error("{} is not valid JSON: {}", source, reason);
  }
  if (!root.is_object()) user_error("{} is not a model's config.json: it holds no object", source);
  return root;
}

}  // namespace

ModelConfig read_hf_config(const std::filesystem::path& file) {
  return parse_hf_config(read_text_file(file), file.string());
}

ModelConfig parse_hf_config(const std::string& text, const std::string& source) {
  const json document = parse_object(text, source);
  const Object root(document, source);
  const std::string type = root.text({"model_type"}, "");
  if (type.empty()) root.refuse("key 'model_type' is missing");
  if (root.has("quantization_config"))
    root.refuse("quantization_config is set: quantised weights are not supported");

  ModelConfig config;
  try {
    config.family = parse_family(type);
  } catch (const UserError& error) {
    root.refuse("model_type: {}", error.what());
  }
  switch (config.family) {
    case Family::Llama:
    case Family::Qwen2:
    case Family::Qwen3:
      read_llama_like(root, config);
      break;
    case Family::Gpt2:
      read_gpt2(root, config);
      break;
    case Family::Bloom:
      read_bloom(root, config);
      break;
  }
  config.init_std = root.real({"initializer_range"}, 0.02);
  config.bos_token = root.token("bos_token_id", config.vocab_size);
  config.eos_token = root.token("eos_token_id", config.vocab_size);
  try {
    config.complete_and_check();
  } catch (const UserError& error) {
    root.refuse("{}", error.what());
  }
  return config;
}

std::string write_hf_config(const ModelConfig& config, DType dtype) {
  ordered_json root;
  root["architectures"] = {architecture(config.family)};
  root["model_type"] = to_string(config.family);
  switch (config.family) {
    case Family::Llama:
    case Family::Qwen2:
    case Family::Qwen3:
      write_llama_like(config, root);
      break;
    case Family::Gpt2:
      write_gpt2(config, root);
      break;
    case Family::Bloom:
      write_bloom(config, root);
      break;
  }
  root["torch_dtype"] = torch_name(dtype);
  // Whose keys these are. Without it, transformers warns that a large vocabulary needs a correction
  // meant for Mistral's, and following the advice would change the ids.
  root["transformers_version"] = "4.51.0";
  return root.dump(2) + "\n";
}

std::string write_hf_generation_config(const ModelConfig& config) {
  ordered_json root;
  root["_from_model_config"] = true;
  if (config.bos_token >= 0) root["bos_token_id"] = config.bos_token;
  if (config.eos_token >= 0) root["eos_token_id"] = config.eos_token;
  return root.dump(2) + "\n";
}

}  // namespace kintsugi
