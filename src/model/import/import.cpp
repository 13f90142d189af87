#include "model/import/import.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "core/error.h"
#include "model/parameter_set.h"
#include "model/spec.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using Kind = PickleValue::Kind;
using Extents = std::vector<std::int64_t>;

// ---- names

// What of a tensor of the checkpoint a tensor of the model is.
enum class Part : std::uint8_t { Whole, Vocabulary, Query, Key, Value, Qkv, Gate, Up, Rotated };

// `own` is the name of the model's tensor without the layer and without ".weight" or ".bias";
// `names` are those that a checkpoint may have, with {} for "weight" or "bias".
struct Place {
  const char* own;
  Part part;
  std::array<const char*, 2> names;
};

// Layer norms are fused into the matrices that follow them (Transformer Engine), or are not.
constexpr const char *kMegatronNorm1 = "self_attention.linear_qkv.layer_norm_{}",
                     *kMegatronNorm2 = "mlp.linear_fc1.layer_norm_{}",
                     *kMegatronQkv = "self_attention.linear_qkv.{}",
                     *kMegatronUp = "mlp.linear_fc1.{}";

constexpr std::array kMegatronLlama = {
    Place{"model.embed_tokens", Part::Vocabulary, {"embedding.word_embeddings.{}"}},
    Place{"model.norm", Part::Whole, {"decoder.final_layernorm.{}"}},
    Place{"lm_head", Part::Vocabulary, {"output_layer.{}"}},
    Place{"self_attn.q_proj", Part::Query, {kMegatronQkv}},
    Place{"self_attn.k_proj", Part::Key, {kMegatronQkv}},
    Place{"self_attn.v_proj", Part::Value, {kMegatronQkv}},
    Place{"self_attn.o_proj", Part::Whole, {"self_attention.linear_proj.{}"}},
    Place{"self_attn.q_norm", Part::Whole, {"self_attention.q_layernorm.{}"}},
    Place{"self_attn.k_norm", Part::Whole, {"self_attention.k_layernorm.{}"}},
    Place{"mlp.gate_proj", Part::Gate, {kMegatronUp}},
    Place{"mlp.gate_proj", Part::Whole, {"mlp.linear_fc1.{}_w"}},
    Place{"mlp.up_proj", Part::Up, {kMegatronUp}},
    Place{"mlp.up_proj", Part::Whole, {"mlp.linear_fc1.{}_v"}},
    Place{"mlp.down_proj", Part::Whole, {"mlp.linear_fc2.{}"}},
    Place{"input_layernorm", Part::Whole, {kMegatronNorm1, "input_layernorm.{}"}},
    Place{"post_attention_layernorm", Part::Whole, {kMegatronNorm2, "pre_mlp_layernorm.{}"}}};

constexpr std::array kMegatronGpt2 = {
    Place{"transformer.wte", Part::Vocabulary, {"embedding.word_embeddings.{}"}},
    Place{"transformer.wpe", Part::Whole, {"embedding.position_embeddings.{}"}},
    Place{"transformer.ln_f", Part::Whole, {"decoder.final_layernorm.{}"}},
    Place{"lm_head", Part::Vocabulary, {"output_layer.{}"}},
    Place{"ln_1", Part::Whole, {kMegatronNorm1, "input_layernorm.{}"}},
    Place{"ln_2", Part::Whole, {kMegatronNorm2, "pre_mlp_layernorm.{}"}},
    Place{"attn.c_attn", Part::Qkv, {kMegatronQkv}},
    Place{"attn.c_proj", Part::Whole, {"self_attention.linear_proj.{}"}},
    Place{"mlp.c_fc", Part::Whole, {kMegatronUp}},
    Place{"mlp.c_proj", Part::Whole, {"mlp.linear_fc2.{}"}}};

// torchtitan. Its Llama rotates adjacent pairs of rows, its Qwen3 halves of heads as ours.
constexpr std::array kTorchtitan = {
    Place{"model.embed_tokens", Part::Whole, {"tok_embeddings.{}"}},
    Place{"model.norm", Part::Whole, {"norm.{}"}},
    Place{"lm_head", Part::Whole, {"output.{}", "lm_head.{}"}},
    Place{"self_attn.q_proj", Part::Rotated, {"attention.wq.{}", "attention.qkv_linear.wq.{}"}},
    Place{"self_attn.k_proj", Part::Rotated, {"attention.wk.{}", "attention.qkv_linear.wk.{}"}},
    Place{"self_attn.v_proj", Part::Whole, {"attention.wv.{}", "attention.qkv_linear.wv.{}"}},
    Place{"self_attn.o_proj", Part::Whole, {"attention.wo.{}"}},
    Place{"self_attn.q_norm", Part::Whole, {"attention.q_norm.{}"}},
    Place{"self_attn.k_norm", Part::Whole, {"attention.k_norm.{}"}},
    Place{"mlp.gate_proj", Part::Whole, {"feed_forward.w1.{}"}},
    Place{"mlp.up_proj", Part::Whole, {"feed_forward.w3.{}"}},
    Place{"mlp.down_proj", Part::Whole, {"feed_forward.w2.{}"}},
    Place{"input_layernorm", Part::Whole, {"attention_norm.{}"}},
    Place{"post_attention_layernorm", Part::Whole, {"ffn_norm.{}"}}};

// "model.layers.3.mlp.up_proj.weight": layer 3, "mlp.up_proj", "weight".
struct OwnName {
  std::string stem, end;
  std::int64_t layer = -1;
};
OwnName parse_own(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  OwnName own{.stem = name.substr(0, dot), .end = name.substr(dot + 1)};
  for (const std::string_view prefix : {"model.layers.", "transformer.h."}) {
    if (!own.stem.starts_with(prefix)) continue;
    const std::size_t end = own.stem.find('.', prefix.size());
    own.layer = std::stoll(own.stem.substr(prefix.size(), end - prefix.size()));
    own.stem.erase(0, end + 1);
  }
  return own;
}

// Optimizer, random numbers, data position and tables that are computed.
bool is_no_weight(std::string_view name) {
  for (const std::string_view begin :
       {"optimizer.", "optimizers.", "optim.", "chained_", "lr_scheduler", "dataloader",
        "rng_state", "train_state", "rerun_state", "opt_param_scheduler", "ntokens_seen"})
    if (name.starts_with(begin)) return true;
  for (const std::string_view part : {"_extra_state", "freqs_cis", "inv_freq", "rope.cache"})
    if (name.find(part) != std::string_view::npos) return true;
  return false;
}

// ---- where a tensor of the model is

// Rows of a tensor of the checkpoint.
struct Piece {
  std::string tensor;
  Extents begin, sizes;
};

// A tensor of the model: the pieces one after the other, converted.
struct Recipe {
  std::vector<Piece> pieces = {};
  DType dtype = DType::F32;
  std::int64_t pair_rows = 0;  // not 0: rows of a head, of which neighbours are rotated together
  bool transposed = false;     // the model has it as [in, out]
};

class Recipes {
 public:
  Recipes(const ForeignCheckpoint& checkpoint, const ModelConfig& config)
      : checkpoint_(checkpoint), config_(config) {
    if (checkpoint.format() == CheckpointFormat::Dcp)
      places_ = kTorchtitan;
    else if (config.family == Family::Gpt2)
      places_ = kMegatronGpt2;
    else
      places_ = kMegatronLlama;
  }

  Recipe of(const Parameter& parameter) {
    const OwnName own = parse_own(parameter.name);
    Found found;
    const Place& place = find(parameter.name, own, found);
    Recipe recipe;
    Extents shape;  // as [out, in]
    for (int i = 0; i < parameter.global.rank(); ++i) shape.push_back(parameter.global[i]);
    recipe.transposed = config_.family == Family::Gpt2 && shape.size() == 2 &&
                        (own.stem.starts_with("attn.") || own.stem.starts_with("mlp."));
    if (recipe.transposed) std::swap(shape[0], shape[1]);
    if (place.part == Part::Rotated && config_.family == Family::Llama)
      recipe.pair_rows = config_.head_dim;
    add_pieces(parameter.name, place.part, found, shape, recipe);
    const auto& dtype = checkpoint_.tensors().find(found.name)->second.dtype;
    if (!dtype || !is_float(*dtype))
      refuse("tensor {} has a type that is not supported (fp32, bf16, fp16 and fp64 are)",
             found.name);
    recipe.dtype = *dtype;
    used_.insert(found.name);
    return recipe;
  }

  // Of AdamW's state for the tensor with this recipe: torchtitan names it after the weight.
  Recipe of_moment(const Recipe& weight, const std::string& moment) const {
    Recipe recipe = weight;
    for (Piece& piece : recipe.pieces) {
      const std::string name = state_name(piece.tensor, moment);
      const auto& tensors = checkpoint_.tensors();
      const auto found = tensors.find(name);
      if (found == tensors.end()) refuse("has no tensor {}: the state of AdamW is not in it", name);
      if (tensors.contains(state_name(piece.tensor, "max_exp_avg_sq")))
        refuse("its AdamW had amsgrad, which kintsugi's has not");
      const ChunkedTensor &state = found->second, &own = tensors.find(piece.tensor)->second;
      if (state.shape != own.shape || !state.dtype || !is_float(*state.dtype))
        refuse("tensor {} of shape [{}] is no state of {} of shape [{}]", name,
               fmt::join(state.shape, ", "), piece.tensor, fmt::join(own.shape, ", "));
      recipe.dtype = *state.dtype;
      piece.tensor = name;
    }
    return recipe;
  }

  // The steps of the optimizer, which are the same for all tensors of recipes.
  std::int64_t steps() const {
    std::optional<std::int64_t> steps;
    for (const std::string& weight : used_) {
      const std::string name = state_name(weight, "step");
      const auto found = checkpoint_.tensors().find(name);
      if (found == checkpoint_.tensors().end() || !found->second.shape.empty() ||
          !found->second.dtype || !is_float(*found->second.dtype))
        refuse("has no number {}", name);
      double value = 0;
      to_doubles(checkpoint_.read(name, {}, {}).data(), *found->second.dtype, {&value, 1});
      constexpr double kMost = 1e15;
      if (!(value >= 1 && value <= kMost) || value != std::floor(value))
        refuse("{} is {}, which is no number of steps", name, value);
      if (steps.value_or(static_cast<std::int64_t>(value)) != static_cast<std::int64_t>(value))
        refuse("{} is {}, but other tensors had {} steps", name, value, *steps);
      steps = static_cast<std::int64_t>(value);
    }
    return steps.value();
  }

  // UserError if a weight of the checkpoint is in no recipe.
  void check_unused() const {
    constexpr std::size_t kNamed = 5;
    std::string names;
    std::size_t count = 0;
    for (const auto& [name, tensor] : checkpoint_.tensors()) {
      if (used_.contains(name) || is_no_weight(name) || is_tied_copy(name)) continue;
      if (++count <= kNamed) names += (names.empty() ? "" : ", ") + name;
    }
    if (count > 0)
      refuse("{} tensors are not used by the model, so that it would be another one: {}{}", count,
             names, count > kNamed ? ", …" : "");
  }

 private:
  // A tensor of the checkpoint; `layer` of a stack of all layers, or -1.
  struct Found {
    std::string name;
    Extents shape;  // without the layers
    std::int64_t layer = -1;
  };

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    user_error("{}: {}", checkpoint_.directory().string(),
               fmt::format(format, std::forward<Args>(args)...));
  }

  static std::string state_name(const std::string& weight, const std::string& what) {
    return fmt::format("optimizer.state.{}.{}", weight, what);
  }

  bool find_tensor(const char* pattern, const OwnName& own, Found& found) const {
    std::string name = pattern;
    name.replace(name.find("{}"), 2, own.end);
    const bool titan = checkpoint_.format() == CheckpointFormat::Dcp;
    const std::string layers = titan ? "layers." : "decoder.layers.";
    if (own.layer >= 0) found.name = fmt::format("{}{}.{}", layers, own.layer, name);
    if (own.layer < 0) found.name = name;
    const auto& tensors = checkpoint_.tensors();
    auto tensor = tensors.find(found.name);
    found.layer = -1;
    if (tensor == tensors.end() && own.layer >= 0 && !titan) {
      found.name = layers + name;
      tensor = tensors.find(found.name);
      found.layer = own.layer;
    }
    if (tensor == tensors.end()) return false;
    found.shape = tensor->second.shape;
    if (found.layer < 0) return true;
    if (found.shape.empty() || found.shape[0] != config_.layers)
      refuse("tensor {} has {} layers, the model {}", found.name,
             found.shape.empty() ? 0 : found.shape[0], config_.layers);
    found.shape.erase(found.shape.begin());
    return true;
  }

  const Place& find(const std::string& name, const OwnName& own, Found& found) const {
    const char* first = nullptr;
    for (const Place& place : places_) {
      if (own.stem != place.own) continue;
      for (const char* const pattern : place.names) {
        if (!pattern) continue;
        if (!first) first = pattern;
        if (find_tensor(pattern, own, found)) return place;
      }
    }
    if (!first) refuse("has no place for the tensor {} of the model", name);
    std::string wanted = first;
    wanted.replace(wanted.find("{}"), 2, own.end);
    refuse("has no tensor {}{}, which {} of the model needs", wanted,
           own.layer >= 0 ? fmt::format(" of layer {}", own.layer) : "", name);
  }

  // Rows [first, first + rows).
  static Piece piece_of(const Found& found, std::int64_t first, std::int64_t rows) {
    Piece piece{.tensor = found.name, .begin = {}, .sizes = {}};
    if (found.layer >= 0) {
      piece.begin.push_back(found.layer);
      piece.sizes.push_back(1);
    }
    for (std::size_t i = 0; i < found.shape.size(); ++i) {
      piece.begin.push_back(i == 0 ? first : 0);
      piece.sizes.push_back(i == 0 ? rows : found.shape[i]);
    }
    return piece;
  }

  void add_pieces(const std::string& name, Part part, const Found& found, const Extents& shape,
                  Recipe& recipe) const {
    // The rows that the tensor of the checkpoint must have.
    const std::int64_t own = found.shape.empty() ? 0 : found.shape[0];
    std::int64_t rows = shape[0];
    if (part == Part::Query || part == Part::Key || part == Part::Value || part == Part::Qkv)
      rows = config_.qkv_rows();
    if (part == Part::Gate || part == Part::Up) rows = 2 * shape[0];
    // Megatron pads the vocabulary.
    if (part == Part::Vocabulary && own > rows) rows = own;
    Extents wanted = shape;
    wanted[0] = rows;
    if (found.shape != wanted)
      refuse("tensor {} has the shape [{}], but {} of the model needs [{}]", found.name,
             fmt::join(found.shape, ", "), name, fmt::join(wanted, ", "));
    const auto add = [&](std::int64_t first, std::int64_t count) {
      recipe.pieces.push_back(piece_of(found, first, count));
    };
    // Rows of linear_qkv: for each key-value head its query heads, its key, its value.
    const std::int64_t d = config_.head_dim, q = config_.heads / config_.kv_heads;
    const auto add_heads = [&](std::int64_t first, std::int64_t count) {
      for (std::int64_t group = 0; group < config_.kv_heads; ++group)
        add((group * (q + 2) + first) * d, count * d);
    };
    if (part == Part::Query || part == Part::Qkv) add_heads(0, q);
    if (part == Part::Key || part == Part::Qkv) add_heads(q, 1);
    if (part == Part::Value || part == Part::Qkv) add_heads(q + 1, 1);
    if (part == Part::Up) add(shape[0], shape[0]);
    if (recipe.pieces.empty()) add(0, shape[0]);
  }

  // The output layer of a tied model, which the last pipeline stage has, too. UserError if it is
  // not the embedding.
  bool is_tied_copy(const std::string& name) const {
    if (!config_.tied) return false;
    if (name != "output_layer.weight" && name != "output.weight" && name != "lm_head.weight")
      return false;
    const auto& tensors = checkpoint_.tensors();
    const std::string table = checkpoint_.format() == CheckpointFormat::Dcp
                                  ? "tok_embeddings.weight"
                                  : "embedding.word_embeddings.weight";
    const ChunkedTensor &copy = tensors.at(name), &embedding = tensors.at(table);
    const Extents begin(2, 0), sizes = {config_.vocab_size, config_.hidden_size};
    if (copy.shape != embedding.shape || copy.dtype != embedding.dtype ||
        checkpoint_.read(name, begin, sizes) != checkpoint_.read(table, begin, sizes))
      refuse("{} differs from {}, but the model's head and embedding are tied", name, table);
    return true;
  }

  const ForeignCheckpoint& checkpoint_;
  const ModelConfig& config_;
  std::span<const Place> places_;
  std::set<std::string> used_;
};

// ---- elements

// Rows 2 i and 2 i + 1 of a head become rows i and i + half.
std::vector<std::byte> halves_of(const std::vector<std::byte>& pairs, std::int64_t rows,
                                 std::int64_t head) {
  std::vector<std::byte> halves(pairs.size());
  const std::size_t row = pairs.size() / static_cast<std::size_t>(rows);
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t first = i / head * head, in_head = i % head;
    const std::int64_t to = first + in_head / 2 + in_head % 2 * (head / 2);
    std::memcpy(halves.data() + static_cast<std::size_t>(to) * row,
                pairs.data() + static_cast<std::size_t>(i) * row, row);
  }
  return halves;
}

std::vector<std::byte> transposed(const std::vector<std::byte>& matrix, std::int64_t rows,
                                  std::int64_t columns, std::size_t width) {
  std::vector<std::byte> result(matrix.size());
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      std::memcpy(result.data() + static_cast<std::size_t>(j * rows + i) * width,
                  matrix.data() + static_cast<std::size_t>(i * columns + j) * width, width);
  return result;
}

std::vector<std::byte> elements_of(const ForeignCheckpoint& checkpoint, const Recipe& recipe,
                                   const Shape& shape) {
  std::vector<std::byte> elements;
  elements.reserve(static_cast<std::size_t>(shape.elements()) * size_of(recipe.dtype));
  for (const Piece& piece : recipe.pieces) {
    const std::vector<std::byte> rows = checkpoint.read(piece.tensor, piece.begin, piece.sizes);
    elements.insert(elements.end(), rows.begin(), rows.end());
  }
  if (recipe.pair_rows > 0) elements = halves_of(elements, shape[0], recipe.pair_rows);
  if (recipe.transposed) elements = transposed(elements, shape[1], shape[0], size_of(recipe.dtype));
  return elements;
}

// ---- what the run says about its model

bool is_true(const PickleValue* value) {
  return value && value->kind == Kind::Bool && value->integer != 0;
}

// Sizes of heads and constants are in no shape: a wrong --model would compute another model.
void check_arguments(const ForeignCheckpoint& checkpoint, const ModelConfig& config) {
  const PickleValue* const arguments = checkpoint.arguments();
  if (!arguments) return;
  const auto check = [&](const char* name, const char* own, double value) {
    const PickleValue* const given = arguments->find(name);
    if (!given || (given->kind != Kind::Integer && given->kind != Kind::Real)) return;
    const double theirs =
        given->kind == Kind::Integer ? static_cast<double>(given->integer) : given->real;
    if (std::abs(theirs - value) > 1e-9 * std::abs(value))
      user_error("{}: its run had {} {}, but {} of --model is {}", checkpoint.directory().string(),
                 name, theirs, own, value);
  };
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  check("num_layers", "layers", number(config.layers));
  check("hidden_size", "hidden_size", number(config.hidden_size));
  check("num_attention_heads", "heads", number(config.heads));
  check("kv_channels", "head_dim", number(config.head_dim));
  check("ffn_hidden_size", "ffn_size", number(config.ffn_size));
  check("norm_epsilon", "norm_eps", config.norm_eps);
  if (is_true(arguments->find("group_query_attention")))
    check("num_query_groups", "kv_heads", number(config.kv_heads));
  if (config.positions() == PositionKind::Rope) {
    check("rotary_base", "rope_theta", config.rope_theta);
    check("rotary_percent", "the rotated part", 1);
    const PickleValue* const positions = arguments->find("position_embedding_type");
    if (positions && positions->kind == Kind::Text && positions->text != "rope" &&
        !(positions->text == "yarn" && config.rope_scaling))
      user_error("{}: its run had position_embedding_type {}, which --model has not",
                 checkpoint.directory().string(), positions->text);
    if (is_true(arguments->find("use_rope_scaling")) && !config.rope_scaling)
      user_error("{}: its run had use_rope_scaling, but --model has no rope_scaling",
                 checkpoint.directory().string());
  }
  for (const char* const name :
       {"rotary_interleaved", "apply_layernorm_1p", "squared_relu", "quick_geglu"})
    if (is_true(arguments->find(name)))
      user_error("{}: its run had {}, which no model of kintsugi has",
                 checkpoint.directory().string(), name);
}

void check_family(const ModelConfig& config, CheckpointFormat format) {
  constexpr std::array kFamilies = {Family::Llama, Family::Qwen2, Family::Qwen3, Family::Gpt2};
  if (std::ranges::find(kFamilies, config.family) == kFamilies.end() || config.is_classifier())
    user_error("--model is a {} model: llama, qwen2, qwen3 and gpt2 can be imported",
               to_string(config.family));
  if (format == CheckpointFormat::Dcp && config.family != Family::Llama &&
      config.family != Family::Qwen3)
    user_error("--model is a {} model: of torchtitan, llama and qwen3 can be imported",
               to_string(config.family));
}

// Adds master weights, where the weights are rounded, and moments to a checkpoint, as
// optim/adamw.cpp names them.
void add_optimizer(const ForeignCheckpoint& checkpoint, const ParameterSet& set,
                   const Recipes& recipes, const ImportOptions& options,
                   std::map<std::string, Recipe>& by_name, ModelContents& contents) {
  if (checkpoint.format() != CheckpointFormat::Dcp)
    user_error("{}: the state of Megatron's optimizers cannot be imported, only torchtitan's AdamW",
               checkpoint.directory().string());
  const DType precision = contents.tensors.front().dtype;
  const DType wide = precision == DType::F64 ? DType::F64 : DType::F32;
  const auto add = [&](const std::string& prefix, const Parameter& parameter, Recipe recipe) {
    by_name[prefix + parameter.name] = std::move(recipe);
    contents.optimizer.push_back({prefix + parameter.name, wide, parameter.global});
  };
  if (precision != wide)
    for (const Parameter& parameter : set.parameters())
      add("master.", parameter, by_name.at(parameter.name));
  for (const char* const moment : {"exp_avg", "exp_avg_sq"})
    for (const Parameter& parameter : set.parameters())
      add(std::string(moment) + ".", parameter,
          recipes.of_moment(by_name.at(parameter.name), moment));
  contents.trainer = options.trainer(recipes.steps(), precision);
}

}  // namespace

WrittenModel import_model(const fs::path& path, const ModelConfig& model, const fs::path& output,
                          const ImportOptions& options) {
  check_family(model, CheckpointFormat::Auto);
  check_output_is_no_input(output, path);
  if (!options.tokenizer.empty()) check_output_is_no_input(output, options.tokenizer);
  const ForeignCheckpoint checkpoint(path, options.format, model.family != Family::Gpt2);
  check_family(model, checkpoint.format());
  check_arguments(checkpoint, model);
  const ParameterSet set(model);
  Recipes recipes(checkpoint, model);
  std::map<std::string, Recipe> by_name;
  ModelContents contents;
  for (const Parameter& parameter : set.parameters()) {
    const Recipe& recipe = by_name[parameter.name] = recipes.of(parameter);
    contents.tensors.push_back(
        {parameter.name, options.output.dtype.value_or(recipe.dtype), parameter.global});
  }
  recipes.check_unused();
  contents.config = write_hf_config(model, contents.tensors.front().dtype);
  if (options.trainer) add_optimizer(checkpoint, set, recipes, options, by_name, contents);
  return write_new_model(model, contents, options.tokenizer, output, options.output,
                         [&](TensorBlocks& blocks, SafetensorsWriter& writer,
                             const SafetensorsWriter::Announced& tensor) {
                           const Recipe& recipe = by_name.at(tensor.name);
                           blocks.given(writer, tensor, recipe.dtype,
                                        elements_of(checkpoint, recipe, tensor.shape));
                         });
}

}  // namespace kintsugi
