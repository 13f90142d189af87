#include "model/parameter_set.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <unordered_set>

#include "core/error.h"

namespace kintsugi {
namespace {

// Tensors start on whole cache lines in every precision, and every bucket divides among 64 ranks.
constexpr std::int64_t kAlignment = 64;

std::int64_t aligned(std::int64_t offset) {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

Parameter vector(std::string name, std::int64_t extent, ParameterGroup group, InitKind init,
                 int bucket) {
  return {
      .name = std::move(name), .shape = {extent}, .group = group, .init = init, .bucket = bucket};
}

Parameter table(std::string name, std::int64_t rows, std::int64_t columns, ParameterGroup group,
                double init_std, int tp_dimension, int bucket) {
  return {.name = std::move(name),
          .shape = {rows, columns},
          .group = group,
          .init_std = init_std,
          .cut = {.dimension = tp_dimension},
          .bucket = bucket,
          .decay = true};
}

enum class Split : std::uint8_t {
  Outputs,
  Inputs
};  // column- and row-parallel in Megatron's words

Parameter matrix(std::string name, std::int64_t in, std::int64_t out, bool in_out, Split split,
                 ParameterGroup group, double init_std, int bucket) {
  const int output_dimension = in_out ? 1 : 0;
  return table(std::move(name), in_out ? in : out, in_out ? out : in, group, init_std,
               split == Split::Outputs ? output_dimension : 1 - output_dimension, bucket);
}

BlockNames llama_names(const ModelConfig& config, int layer) {
  const std::string block = fmt::format("model.layers.{}.", layer);
  const std::string attention = block + "self_attn.", mlp = block + "mlp.";
  const FamilyTraits traits = config.traits();
  BlockNames names;
  for (const char* role : {"q_proj", "k_proj", "v_proj"}) {
    names.qkv_weight.push_back(attention + role + ".weight");
    if (traits.qkv_bias) names.qkv_bias.push_back(attention + role + ".bias");
  }
  names.out_weight = attention + "o_proj.weight";
  names.up_weight = {mlp + "gate_proj.weight", mlp + "up_proj.weight"};
  names.down_weight = mlp + "down_proj.weight";
  names.norm1_weight = block + "input_layernorm.weight";
  names.norm2_weight = block + "post_attention_layernorm.weight";
  if (traits.qk_norm) {
    names.q_norm_weight = attention + "q_norm.weight";
    names.k_norm_weight = attention + "k_norm.weight";
  }
  return names;
}

// GPT-2 and BLOOM: the same roles, every one with a bias, under their own words.
struct PackedWords {
  const char *qkv, *out, *up, *down, *norm1, *norm2;
};
constexpr PackedWords kGpt2Words = {"attn.c_attn", "attn.c_proj", "mlp.c_fc",
                                    "mlp.c_proj",  "ln_1",        "ln_2"};
constexpr PackedWords kBloomWords = {"self_attention.query_key_value",
                                     "self_attention.dense",
                                     "mlp.dense_h_to_4h",
                                     "mlp.dense_4h_to_h",
                                     "input_layernorm",
                                     "post_attention_layernorm"};

BlockNames packed_names(const PackedWords& words, int layer) {
  const auto name = [&](const char* word, const char* kind) {
    return fmt::format("transformer.h.{}.{}.{}", layer, word, kind);
  };
  return {.qkv_weight = {name(words.qkv, "weight")},
          .qkv_bias = {name(words.qkv, "bias")},
          .out_weight = name(words.out, "weight"),
          .out_bias = name(words.out, "bias"),
          .up_weight = {name(words.up, "weight")},
          .up_bias = {name(words.up, "bias")},
          .down_weight = name(words.down, "weight"),
          .down_bias = name(words.down, "bias"),
          .norm1_weight = name(words.norm1, "weight"),
          .norm1_bias = name(words.norm1, "bias"),
          .norm2_weight = name(words.norm2, "weight"),
          .norm2_bias = name(words.norm2, "bias"),
          .q_norm_weight = {},
          .k_norm_weight = {}};
}

}  // namespace

std::string_view to_string(ParameterGroup group) {
  switch (group) {
    case ParameterGroup::Embedding:
      return "embedding";
    case ParameterGroup::Attention:
      return "attention";
    case ParameterGroup::Mlp:
      return "mlp";
    case ParameterGroup::Norm:
      return "norm";
    case ParameterGroup::Head:
      return "head";
  }
  return "?";
}

BlockNames block_names(const ModelConfig& config, int layer) {
  switch (config.family) {
    case Family::Gpt2:
      return packed_names(kGpt2Words, layer);
    case Family::Bloom:
      return packed_names(kBloomWords, layer);
    default:
      return llama_names(config, layer);
  }
}

OuterNames outer_names(const ModelConfig& config) {
  OuterNames names;
  switch (config.family) {
    case Family::Gpt2:
      names.embedding = "transformer.wte.weight";
      names.positions = "transformer.wpe.weight";
      break;
    case Family::Bloom:
      names.embedding = "transformer.word_embeddings.weight";
      names.embedding_norm_weight = "transformer.word_embeddings_layernorm.weight";
      names.embedding_norm_bias = "transformer.word_embeddings_layernorm.bias";
      break;
    default:
      names.embedding = "model.embed_tokens.weight";
      names.final_norm_weight = "model.norm.weight";
  }
  if (names.final_norm_weight.empty()) {
    names.final_norm_weight = "transformer.ln_f.weight";
    names.final_norm_bias = "transformer.ln_f.bias";
  }
  if (!config.tied) names.head = "lm_head.weight";
  return names;
}

// Buckets in the order of their use; those that a slice does not have leave no gap.
namespace {
constexpr int kTableBucket = 0, kEmbeddingBucket = 1, kFirstBlockBucket = 2;
}  // namespace

ParameterSet::ParameterSet(const ModelConfig& config) : ParameterSet(config, whole_model(config)) {}

ParameterSet::ParameterSet(const ModelConfig& config, const ModelSlice& slice)
    : tp_rank_(slice.tp_rank) {
  KINTSUGI_CHECK(
      config.layers > 0 && config.head_dim > 0 && config.kv_heads > 0 && config.ffn_size > 0,
      "a model configuration is completed before it is used");
  add_outer(config, slice);
  for (const int layer : slice.layers) add_block(config, layer);
  cut(config, slice);
  place(static_cast<int>(config.layers));
}

void ParameterSet::add_outer(const ModelConfig& config, const ModelSlice& slice) {
  const OuterNames names = outer_names(config);
  const std::int64_t hidden = config.hidden_size;
  const int head_bucket = kFirstBlockBucket + static_cast<int>(config.layers);
  const auto norm = [&](const std::string& weight, const std::string& bias, int bucket) {
    if (!weight.empty()) add(vector(weight, hidden, ParameterGroup::Norm, InitKind::Ones, bucket));
    if (!bias.empty()) add(vector(bias, hidden, ParameterGroup::Norm, InitKind::Zeros, bucket));
  };
  const bool shared = slice.shares_table(config);
  if (slice.embedding || shared) {
    add(table(names.embedding, config.vocab_size, hidden, ParameterGroup::Embedding,
              config.init_std, 0, shared ? kTableBucket : kEmbeddingBucket));
    Parameter& tokens = parameters_.back();
    tokens.overwritten = config.tied && slice.head;  // by the head, before the embedding adds to it
    if (shared) tokens.sum = GradientSum::Tied;
    tokens.counted = slice.embedding;
  }
  if (slice.embedding) {
    if (!names.positions.empty())
      add(table(names.positions, config.max_positions, hidden, ParameterGroup::Embedding,
                config.init_std, -1, kEmbeddingBucket));
    norm(names.embedding_norm_weight, names.embedding_norm_bias, kEmbeddingBucket);
  }
  if (!slice.head) return;
  norm(names.final_norm_weight, names.final_norm_bias, head_bucket);
  if (names.head.empty()) return;
  add(table(names.head, config.vocab_size, hidden, ParameterGroup::Head, config.init_std, 0,
            head_bucket));
  parameters_.back().overwritten = true;
}

void ParameterSet::add_block(const ModelConfig& config, int layer) {
  const FamilyTraits traits = config.traits();
  const BlockNames names = block_names(config, layer);
  const int bucket = kFirstBlockBucket + layer;
  // Every block adds two outputs to the residual stream: its variance stays the same for any depth
  // (GPT-2).
  const double residual_std = config.init_std / std::sqrt(2.0 * static_cast<double>(config.layers));
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t q_rows = config.heads * config.head_dim,
                     kv_rows = config.kv_heads * config.head_dim;

  const auto norm = [&](const std::string& weight, const std::string& bias, std::int64_t width) {
    if (!weight.empty()) add(vector(weight, width, ParameterGroup::Norm, InitKind::Ones, bucket));
    if (!bias.empty()) add(vector(bias, width, ParameterGroup::Norm, InitKind::Zeros, bucket));
  };
  // One or several matrices with the same input, read as one.
  const auto outputs = [&](const std::vector<std::string>& weights,
                           const std::vector<std::string>& biases,
                           const std::vector<std::int64_t>& rows, ParameterGroup group, int parts) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      add(matrix(weights[i], hidden, rows[i], traits.weights_in_out, Split::Outputs, group,
                 config.init_std, bucket));
      parameters_.back().cut.parts = parts;
      parameters_.back().packed = i > 0;
      parameters_.back().overwritten = true;
    }
    for (std::size_t i = 0; i < biases.size(); ++i) {
      add(vector(biases[i], rows[i], group, InitKind::Zeros, bucket));
      parameters_.back().cut = {.dimension = 0, .parts = parts};
      parameters_.back().packed = i > 0;
    }
  };
  const auto residual = [&](const std::string& weight, const std::string& bias, std::int64_t in,
                            ParameterGroup group) {
    add(matrix(weight, in, hidden, traits.weights_in_out, Split::Inputs, group, residual_std,
               bucket));
    parameters_.back().overwritten = true;
    if (!bias.empty()) add(vector(bias, hidden, group, InitKind::Zeros, bucket));
  };

  norm(names.norm1_weight, names.norm1_bias, hidden);
  const bool one_matrix = names.qkv_weight.size() == 1;
  outputs(names.qkv_weight, names.qkv_bias,
          one_matrix ? std::vector{config.qkv_rows()} : std::vector{q_rows, kv_rows, kv_rows},
          ParameterGroup::Attention, one_matrix && !traits.qkv_per_head ? 3 : 1);
  norm(names.q_norm_weight, {}, config.head_dim);
  norm(names.k_norm_weight, {}, config.head_dim);
  residual(names.out_weight, names.out_bias, q_rows, ParameterGroup::Attention);
  norm(names.norm2_weight, names.norm2_bias, hidden);
  outputs(names.up_weight, names.up_bias, {config.ffn_size, config.ffn_size}, ParameterGroup::Mlp,
          1);
  residual(names.down_weight, names.down_bias, config.ffn_size, ParameterGroup::Mlp);
}

// From the whole parameters to this rank's shares of them.
void ParameterSet::cut(const ModelConfig& config, const ModelSlice& slice) {
  const int copies = kv_copies(config, slice.tp);
  std::unordered_set<std::string> of_kv, of_heads;  // k and v by themselves; norms of each head
  for (const int layer : slice.layers) {
    const BlockNames names = block_names(config, layer);
    for (const auto* list : {&names.qkv_weight, &names.qkv_bias})
      for (std::size_t i = 1; i < list->size(); ++i) of_kv.insert((*list)[i]);
    of_heads.insert({names.q_norm_weight, names.k_norm_weight});
  }
  for (Parameter& parameter : parameters_) {
    parameter.global = parameter.shape;
    if (slice.tp == 1) continue;
    parameter.cut.ranks = slice.tp;
    if (copies > 1 && of_kv.contains(parameter.name)) {
      parameter.cut.copies = copies;
      parameter.sum = GradientSum::Kv;
      parameter.counted = slice.tp_rank % copies == 0;
    }
    if (parameter.cut.dimension < 0) {
      if (slice.sequence_parallel || of_heads.contains(parameter.name))
        parameter.sum = GradientSum::Tp;
      parameter.counted = parameter.counted && slice.tp_rank == 0;
    }
    parameter.shape = parameter.cut.local(parameter.global);
  }
}

void ParameterSet::place(int layers) {
  const auto order = [](const Parameter& p) { return std::tuple(p.bucket, !p.decay); };
  std::stable_sort(parameters_.begin(), parameters_.end(),
                   [&](const Parameter& a, const Parameter& b) { return order(a) < order(b); });
  const auto role = [&](int bucket) {
    if (bucket == kTableBucket) return Bucket::Role::Table;
    if (bucket == kEmbeddingBucket) return Bucket::Role::Embedding;
    return bucket < kFirstBlockBucket + layers ? Bucket::Role::Block : Bucket::Role::Head;
  };
  std::int64_t end = 0;
  for (std::size_t i = 0; i < parameters_.size();) {
    const int key = parameters_[i].bucket;
    Bucket bucket{.role = role(key), .begin = end, .decay_end = end};
    for (; i < parameters_.size() && parameters_[i].bucket == key; ++i) {
      Parameter& parameter = parameters_[i];
      parameter.bucket = static_cast<int>(buckets_.size());
      parameter.offset = parameter.packed ? end : aligned(end);
      end = parameter.offset + parameter.shape.elements();
      if (parameter.decay) bucket.decay_end = aligned(end);
      const bool is_new = by_name_.emplace(parameter.name, static_cast<int>(i)).second;
      KINTSUGI_CHECK(is_new, "two parameters are named {}", parameter.name);
    }
    end = bucket.end = aligned(end);
    buckets_.push_back(bucket);
  }
}

int ParameterSet::index(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  if (found == by_name_.end()) failure("the model has no parameter named '{}'", name);
  return found->second;
}

std::int64_t ParameterSet::elements() const {
  std::int64_t sum = 0;
  for (const Parameter& parameter : parameters_) sum += parameter.shape.elements();
  return sum;
}

ParameterStore::ParameterStore(const ParameterSet& set, DType dtype)
    : set_(&set), dtype_(dtype), places_(set.buckets().size()) {}

ParameterStore::ParameterStore(const ParameterSet& set, Arena& arena, DType dtype,
                               bool with_gradients)
    : ParameterStore(set, dtype) {
  weights_ = arena.allocate(Region::Weights, "weights", dtype, {set.buffer_elements()});
  if (with_gradients)
    gradients_ = arena.allocate(Region::Gradients, "gradients", accumulator_of(dtype),
                                {set.buffer_elements()});
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const Bucket& bucket = set.buckets()[i];
    places_[i].weights = weights_.rows(bucket.begin, bucket.end - bucket.begin);
    if (with_gradients)
      places_[i].gradients = gradients_.rows(bucket.begin, bucket.end - bucket.begin);
  }
}

Tensor ParameterStore::weight(int first, Shape shape) const {
  const int bucket = (*set_)[first].bucket;
  KINTSUGI_CHECK(bucket_weights(bucket), "the weights of {} are not here", (*set_)[first].name);
  return slice(bucket_weights(bucket), first, shape);
}

Tensor ParameterStore::gradient(int first, Shape shape) const {
  return slice(bucket_gradients((*set_)[first].bucket), first, shape);
}

Tensor ParameterStore::slice(Tensor flat, int index, Shape shape) const {
  if (!flat) return {};  // gradients of a store without them
  // The shape covers this parameter and, if more, exactly the packed ones that follow.
  std::int64_t covered = (*set_)[index].shape.elements();
  const auto& parameters = set_->parameters();
  for (std::size_t next = index + 1; covered < shape.elements() && next < parameters.size();
       ++next) {
    KINTSUGI_CHECK(parameters[next].packed, "{} does not lie directly behind {}",
                   parameters[next].name, (*set_)[index].name);
    covered += parameters[next].shape.elements();
  }
  KINTSUGI_CHECK(covered == shape.elements(), "{} has {} elements, {} is asked for",
                 (*set_)[index].name, covered, to_string(shape));
  const std::int64_t offset =
      (*set_)[index].offset - set_->buckets()[at((*set_)[index].bucket)].begin;
  auto* begin = static_cast<std::byte*>(flat.data()) +
                static_cast<std::size_t>(offset) * size_of(flat.dtype());
  return Tensor(begin, flat.dtype(), shape);
}

}  // namespace kintsugi
