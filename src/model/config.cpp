#include "model/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <system_error>

#include "core/error.h"
#include "core/file.h"
#include "core/units.h"
#include "model/adapter/peft_config.h"
#include "model/families/family.h"
#include "model/fp8.h"
#include "model/lora.h"

namespace kintsugi {
namespace {

// A size above these limits is a typo, and products of sizes could overflow 64 bits.
constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxExperts = 1024;  // as the order_choices of GPUs
constexpr double kMaxParameters = 1e16;

void check_size(const char* name, std::int64_t value, std::int64_t limit = kMaxSize) {
  if (value == 0) user_error("{} is missing or 0: give a positive number", name);
  if (value < 0) user_error("{} is {}: it must be positive", name, value);
  if (value > limit) user_error("{} is {}: at most {} is possible", name, value, limit);
}

void check_positive(const char* name, double value) {
  if (!(std::isfinite(value) && value > 0))
    user_error("{} is {}: it must be a positive number", name, value);
}

void check_token(const char* name, std::int64_t token, std::int64_t vocab_size) {
  if (token < -1 || token >= vocab_size)
    user_error(
        "{} is {}, outside the vocabulary of {} tokens: give the tokenizer's id, or -1 for none",
        name, token, vocab_size);
}

void check_yarn(const RopeScaling& scaling) {
  check_positive("rope_scaling.beta_fast", scaling.beta_fast);
  check_positive("rope_scaling.beta_slow", scaling.beta_slow);
  if (scaling.beta_slow >= scaling.beta_fast)
    user_error("rope_scaling.beta_slow {} must be below beta_fast {}", scaling.beta_slow,
               scaling.beta_fast);
  const auto check = [](const char* name, double value) {
    if (!(std::isfinite(value) && value >= 0))
      user_error("rope_scaling.{} is {}: it must be positive, or 0 for the default", name, value);
  };
  check("attention_factor", scaling.attention_factor);
  check("mscale", scaling.mscale);
  check("mscale_all_dim", scaling.mscale_all_dim);
}

// Reduces the list to its shortest repeating pattern. The list becomes empty if all layers are
// full.
void shorten(std::vector<LayerType>& types) {
  const auto all = static_cast<std::ptrdiff_t>(types.size());
  for (std::ptrdiff_t period = 1; period < all; ++period)
    if (all % period == 0 &&
        std::equal(types.begin(), types.end() - period, types.begin() + period)) {
      types.resize(static_cast<std::size_t>(period));
      break;
    }
  if (types.size() == 1 && types.front() == LayerType::Full) types.clear();
}

void check_windows(ModelConfig& config) {
  const bool sliding =
      std::ranges::find(config.layer_types, LayerType::Sliding) != config.layer_types.end();
  if (!family_info(config.family).windows && (sliding || config.sliding_window != 0))
    user_error(
        "sliding windows are set, but family {} has none: remove sliding_window and "
        "layer_types",
        to_string(config.family));
  if (sliding) check_size("sliding_window", config.sliding_window);
  if (static_cast<std::int64_t>(config.layer_types.size()) > config.layers)
    user_error("layer_types names {} layers, but there are {}", config.layer_types.size(),
               config.layers);
  if (!config.layer_types.empty() &&
      config.layers % static_cast<std::int64_t>(config.layer_types.size()) != 0)
    user_error(
        "layer_types names {} layers, which does not divide the {} of the model: give a "
        "pattern that repeats, or all of them",
        config.layer_types.size(), config.layers);
  shorten(config.layer_types);
}

void check_experts(ModelConfig& config) {
  const bool wanted = family_info(config.family).experts;
  if (config.experts && !wanted)
    user_error("experts are given, but family {} has none: remove them", to_string(config.family));
  if (!config.experts && wanted)
    user_error("family {} is a mixture of experts: give experts, such as {{count: 8, chosen: 2}}",
               to_string(config.family));
  if (!wanted) return;
  ExpertsConfig& experts = *config.experts;
  if (experts.size == 0) experts.size = config.ffn_size;
  check_size("experts.count", experts.count, kMaxExperts);
  check_size("experts.chosen", experts.chosen, kMaxExperts);
  check_size("experts.size", experts.size);
  check_size("experts.groups", experts.groups);
  check_size("experts.top_groups", experts.top_groups);
  check_positive("experts.scale", experts.scale);
  if (experts.shared != 0) check_size("experts.shared", experts.shared, kMaxExperts);
  if (experts.chosen > experts.count)
    user_error("experts.chosen is {}, but there {} {}", experts.chosen,
               experts.count == 1 ? "is" : "are", format_number(experts.count, "expert"));
  if (experts.count % experts.groups != 0)
    user_error("experts.groups {} does not divide experts.count {}", experts.groups, experts.count);
  if (experts.top_groups > experts.groups)
    user_error("experts.top_groups is {}, but experts.groups is {}", experts.top_groups,
               experts.groups);
  if (experts.chosen > experts.count / experts.groups * experts.top_groups)
    user_error("experts.chosen is {}, but the best {} groups have {} experts", experts.chosen,
               experts.top_groups, experts.count / experts.groups * experts.top_groups);
  std::ranges::sort(experts.dense_layers);
  const auto repeated = std::ranges::unique(experts.dense_layers);
  experts.dense_layers.erase(repeated.begin(), repeated.end());
  for (const std::int64_t layer : experts.dense_layers)
    if (layer < 0 || layer >= config.layers)
      user_error("experts.dense_layers names layer {}, but the layers are 0 to {}", layer,
                 config.layers - 1);
}

// Also sets head_dim, the size of a key.
void complete_latent(ModelConfig& config) {
  if (config.latent.has_value() != family_info(config.family).latent) {
    if (config.latent)
      user_error("latent is given, but family {} has no latent attention: remove it",
                 to_string(config.family));
    user_error("family {} needs the sizes of its attention: latent: {{rank: 512, …}}",
               to_string(config.family));
  }
  if (!config.latent) return;
  const LatentConfig& latent = *config.latent;
  if (latent.query_rank != 0) check_size("latent.query_rank", latent.query_rank);
  check_size("latent.rank", latent.rank);
  check_size("latent.plain_dim", latent.plain_dim);
  check_size("latent.rotary_dim", latent.rotary_dim);
  check_size("latent.value_dim", latent.value_dim);
  if (latent.rotary_dim % 2 != 0)
    user_error("latent.rotary_dim is {}: rotary positions need an even number", latent.rotary_dim);
  const std::int64_t keys = latent.plain_dim + latent.rotary_dim;
  if (config.head_dim != 0 && config.head_dim != keys)
    user_error("head_dim is {}, but plain_dim and rotary_dim of latent add up to {}: remove it",
               config.head_dim, keys);
  if (config.kv_heads != config.heads)
    user_error("kv_heads is {}, but latent attention has keys for each of {} heads: remove it",
               config.kv_heads, config.heads);
  config.head_dim = keys;
}

void check_rotation(const ModelConfig& config) {
  if (config.positions() != PositionKind::Rope) {
    if (config.rope_scaling)
      user_error("rope_scaling is set, but family {} has no rotary positions: remove it",
                 to_string(config.family));
    return;
  }
  if (!config.latent && config.head_dim % 2 != 0)
    user_error("head_dim is {}: rotary positions need an even number (hidden_size {}, heads {})",
               config.head_dim, config.hidden_size, config.heads);
  if (!config.rope_scaling) return;
  const RopeScaling& scaling = *config.rope_scaling;
  check_positive("rope_scaling.factor", scaling.factor);
  check_size("rope_scaling.original_max_positions", scaling.original_max_positions);
  if (scaling.type == RopeScalingKind::Yarn) return check_yarn(scaling);
  check_positive("rope_scaling.low_freq_factor", scaling.low_freq_factor);
  check_positive("rope_scaling.high_freq_factor", scaling.high_freq_factor);
  if (scaling.low_freq_factor >= scaling.high_freq_factor)
    user_error("rope_scaling.low_freq_factor {} must be below high_freq_factor {}",
               scaling.low_freq_factor, scaling.high_freq_factor);
}

// A classifier has a head of its own. transformers needs a padding token for batches.
void complete_classifier(ModelConfig& config) {
  if (!config.is_classifier()) {
    if (config.pad_token >= 0)
      user_error("pad_token is {}, but only classifiers use it: remove it", config.pad_token);
    return;
  }
  if (family_info(config.family).classifier == nullptr)
    user_error(
        "family {} has no sequence classifier, because transformers has no class for it: use "
        "another model",
        to_string(config.family));
  if (config.labels.size() < 2)
    user_error("labels has only '{}': a classifier needs two labels or more",
               config.labels.front());
  check_size("the number of labels", std::ssize(config.labels));
  std::vector<std::string_view> sorted(config.labels.begin(), config.labels.end());
  std::ranges::sort(sorted);
  if (sorted.front().empty()) user_error("a label is empty: give every label a name");
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice != sorted.end()) user_error("label '{}' is listed twice: remove one", *twice);
  config.tied = false;
  if (config.pad_token < 0) config.pad_token = config.eos_token;
}

// The head of a classifier.
void use_labels(ModelSpec& model, const ModelConfig& config) {
  model.tied = false;
  model.head.table = kScoreTable;
  model.head.vocab_size = std::ssize(config.labels);
  model.head.classifies = true;
  model.head.init = {InitKind::Normal, config.init_std};
}

void check_total(const ModelConfig& config) {
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  const double block =
      real(config.hidden_size) * (real(config.heads + config.kv_heads) * 2 * real(config.head_dim) +
                                  3 * real(config.ffn_size));
  const double experts = config.experts
                             ? 3 * real(config.hidden_size) * real(config.experts->size) *
                                   real(config.experts->count + config.experts->shared)
                             : 0;
  const double total =
      real(config.layers) * (block + experts) +
      real(config.hidden_size) * (2 * real(config.vocab_size) + real(config.max_positions) +
                                  static_cast<double>(config.labels.size()));
  if (total > kMaxParameters)
    user_error(
        "these sizes make a model of about {} parameters: is one of hidden_size {}, layers {}, "
        "ffn_size {}, vocab_size {} mistyped?",
        format_count(total), config.hidden_size, config.layers, config.ffn_size, config.vocab_size);
}

}  // namespace

double LoraConfig::scale() const {
  const auto rank = static_cast<double>(r);
  return alpha / (rslora ? std::sqrt(rank) : rank);
}

bool ModelConfig::has_experts(std::int64_t layer) const {
  return experts && !std::ranges::binary_search(experts->dense_layers, layer);
}

std::int64_t ModelConfig::feed_forward_parts() const {
  if (!experts) return ffn_size;
  std::int64_t parts = experts->count;
  if (!experts->dense_layers.empty()) parts = std::gcd(parts, ffn_size);
  return experts->shared > 0 ? std::gcd(parts, experts->shared * experts->size) : parts;
}

std::string ModelConfig::feed_forward_text() const {
  if (!experts) return fmt::format("{} MLP columns", ffn_size);
  return fmt::format("{} experts{}", experts->count,
                     feed_forward_parts() == experts->count
                         ? ""
                         : fmt::format(" ({} with its MLPs)", feed_forward_parts()));
}

PositionKind ModelConfig::positions() const { return family_info(family).positions; }

std::string_view to_string(LayerType type) {
  return type == LayerType::Full ? "full_attention" : "sliding_attention";
}

LayerType parse_layer_type(std::string_view text) {
  for (const LayerType type : {LayerType::Full, LayerType::Sliding})
    if (text == to_string(type)) return type;
  user_error("'{}' is not a layer type: use full_attention or sliding_attention", text);
}

std::string_view to_string(RopeScalingKind kind) {
  return kind == RopeScalingKind::Llama3 ? "llama3" : "yarn";
}

RopeScalingKind parse_rope_scaling(std::string_view text) {
  for (const RopeScalingKind kind : {RopeScalingKind::Llama3, RopeScalingKind::Yarn})
    if (text == to_string(kind)) return kind;
  user_error("'{}' is not a type of rope scaling: use llama3 or yarn", text);
}

std::string_view to_string(Family family) { return family_info(family).model_type; }

Family parse_family(std::string_view text) {
  std::vector<std::string_view> names;
  for (const FamilyInfo* info : all_families()) {
    if (text == info->model_type) return info->family;
    names.push_back(info->model_type);
  }
  const std::string near = nearest_word(text, names);
  user_error("there is no model family '{}'{}; the families are {}", text,
             near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near),
             fmt::join(names, ", "));
}

ModelSpec model_spec(const ModelConfig& config) {
  ModelSpec model = family_info(config.family).spec(config);
  if (config.is_classifier()) use_labels(model, config);
  if (config.change_layers != nullptr) config.change_layers(model);
  add_adapters(model, config.lora);
  add_fp8(model, config.fp8);
  return model;
}

void ModelConfig::complete_and_check() {
  check_size("vocab_size", vocab_size);
  check_size("hidden_size", hidden_size);
  check_size("layers", layers, kMaxLayers);
  check_size("heads", heads);
  check_size("max_positions", max_positions);
  if (kv_heads == 0) kv_heads = heads;
  check_size("kv_heads", kv_heads);
  if (heads % kv_heads != 0)
    user_error(
        "kv_heads {} does not divide heads {}: each key-value head serves the same number of heads",
        kv_heads, heads);
  complete_latent(*this);
  if (head_dim == 0) {
    if (hidden_size % heads != 0)
      user_error("heads {} does not divide hidden_size {}: change one of them or give head_dim",
                 heads, hidden_size);
    head_dim = hidden_size / heads;
  }
  check_size("head_dim", head_dim);
  if (value_size != 0 && !family_info(family).values)
    user_error("value_size is {}, but family {} has no such size: remove it", value_size,
               to_string(family));
  if (qk_norm && !family_info(family).qk_norm)
    user_error("qk_norm is true, but family {} has no such choice: remove it", to_string(family));
  if (ffn_size == 0) ffn_size = 4 * hidden_size;
  check_size("ffn_size", ffn_size);
  if (const auto check = family_info(family).check) check(*this);
  check_experts(*this);
  check_rotation(*this);
  check_windows(*this);
  check_positive("norm_eps", norm_eps);
  check_positive("rope_theta", rope_theta);
  if (!(std::isfinite(init_std) && init_std >= 0))
    user_error("init_std is {}: it must be zero or more", init_std);
  check_token("bos_token", bos_token, vocab_size);
  check_token("eos_token", eos_token, vocab_size);
  check_token("pad_token", pad_token, vocab_size);
  complete_classifier(*this);
  check_total(*this);
}

std::filesystem::path model_directory(const std::filesystem::path& path) {
  return resolve_run_directory(path, [](const std::filesystem::path& directory) {
    std::error_code ignored;
    return std::filesystem::exists(directory / "config.json", ignored) ||
           is_adapter_directory(directory);
  });
}

ModelConfig read_model_directory(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::filesystem::path directory = model_directory(path), file = directory / "config.json";
  if (is_adapter_directory(directory)) refuse_adapter(directory);
  if (!std::filesystem::exists(file, ignored))
    user_error("directory {} holds no config.json: it is not a Hugging Face model or a checkpoint",
               path.string());
  return read_hf_config(file);
}

bool holds_weights(const std::filesystem::path& directory) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model") && name.ends_with(".safetensors")) return true;
  }
  return false;
}

ModelConfig resolve_model(const std::string& name_or_path) {
  const auto names = preset_names();
  if (std::ranges::find(names, name_or_path) != names.end()) return load_preset(name_or_path);

  const std::filesystem::path path = name_or_path;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return read_model_directory(path);
  const std::string extension = path.extension().string();
  if (extension == ".json") return read_hf_config(path);
  if (extension == ".yaml" || extension == ".yml")
    return parse_model_yaml(read_text_file(path), name_or_path);
  if (std::filesystem::exists(path, ignored))
    user_error("{} is neither a .yaml model description nor a config.json", name_or_path);
  if (name_or_path.find('/') != std::string::npos)
    user_error("there is no file or directory {}", name_or_path);
  return load_preset(name_or_path);  // throws, with the nearest name
}

}  // namespace kintsugi
