#include "model/parameter_set.h"

#include <algorithm>
#include <tuple>

#include "core/error.h"
#include "core/units.h"
#include "model/block.h"
#include "model/layers/embedding.h"
#include "model/layers/head.h"
#include "model/lora.h"

namespace kintsugi {
namespace {

// In every precision, tensors start on cache lines and bucket sizes are divisible by 64 ranks.
constexpr std::int64_t kAlignment = 64;

std::int64_t aligned(std::int64_t offset) {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

// Bucket keys, in order of use. Buckets that a shard does not have leave no gap.
constexpr int kTableBucket = 0, kEmbeddingBucket = 1, kFirstBlockBucket = 2;

}  // namespace

std::string_view to_string(ParameterGroup group) {
  return enum_name(group, {"embedding", "attention", "retention", "mlp", "router", "experts",
                           "norm", "head", "adapter"});
}

ParameterSet::ParameterSet(const ModelConfig& config) : ParameterSet(config, whole_model(config)) {}

ParameterSet::ParameterSet(const ModelConfig& config, const ModelShard& shard,
                           const DataGroupsOf& data)
    : ParameterSet(config, model_spec(config), shard, data) {}

ParameterSet::ParameterSet(const ModelConfig& config, const ModelSpec& model,
                           const ModelShard& shard, const DataGroupsOf& data)
    : tp_rank_(shard.tp_rank) {
  KINTSUGI_CHECK(
      config.layers > 0 && config.head_dim > 0 && config.kv_heads > 0 && config.ffn_size > 0,
      "complete_and_check() was not called on the model configuration");
  collect(model, shard);
  for (Parameter& parameter : parameters_) parameter.trained = is_trained(config, parameter);
  if (data)
    for (Parameter& parameter : parameters_) parameter.data = data(parameter);
  assign_offsets(static_cast<int>(config.layers));
}

void ParameterSet::collect(const ModelSpec& model, const ModelShard& shard) {
  const LayerRanks ranks{.tensor = shard.tp,
                         .tensor_rank = shard.tp_rank,
                         .sequence_parallel = shard.sequence_parallel,
                         .experts = shard.experts,
                         .experts_rank = shard.experts_rank};
  const auto add = [&](auto&& layer, int bucket) {
    Declaration declared(ranks);
    layer.declare(declared);
    for (Parameter& parameter : declared.parameters()) {
      parameter.bucket = bucket;
      parameters_.push_back(std::move(parameter));
    }
  };
  if (shard.embedding) add(Embedding(model), kEmbeddingBucket);
  for (const int layer : shard.layers) add(Block(model, layer), kFirstBlockBucket + layer);
  if (shard.head) add(Head(model), kFirstBlockBucket + static_cast<int>(model.layers.size()));
  if (!model.tied) return;
  // The head and the embedding are one matrix: the head's gradient overwrites, the embedding's is
  // added. The embedding declares its table first, the head last.
  if (shard.embedding && shard.head) {
    parameters_.front().flops = parameters_.back().flops;
    parameters_.front().overwritten = true;
    parameters_.pop_back();
  } else if (shard.embedding || shard.head) {  // another stage has the other copy
    Parameter& copy = shard.embedding ? parameters_.front() : parameters_.back();
    copy.bucket = kTableBucket;
    copy.group = ParameterGroup::Embedding;
    copy.sum_over = {GroupKind::Tied};
    copy.counted = shard.embedding;
  }
}

void ParameterSet::assign_offsets(int layers) {
  const auto order = [](const Parameter& p) {
    return std::tuple(p.bucket, p.data, !p.trained, p.wide, !p.fp8, !p.decay);
  };
  std::ranges::stable_sort(
      parameters_, [&](const Parameter& a, const Parameter& b) { return order(a) < order(b); });
  const auto role = [&](int bucket) {
    if (bucket == kTableBucket) return Bucket::Role::Table;
    if (bucket == kEmbeddingBucket) return Bucket::Role::Embedding;
    return bucket < kFirstBlockBucket + layers ? Bucket::Role::Block : Bucket::Role::Head;
  };
  std::int64_t end = 0;
  for (std::size_t i = 0; i < parameters_.size();) {
    const Parameter first = parameters_[i];
    Bucket bucket{.role = role(first.bucket),
                  .data = first.data,
                  .trained = first.trained,
                  .fp8 = first.fp8,
                  .wide = first.wide,
                  .begin = end,
                  .decay_end = end};
    if (bucket.role == Bucket::Role::Block) bucket.layer = first.bucket - kFirstBlockBucket;
    const auto belongs = [&](const Parameter& p) {
      return p.bucket == first.bucket && p.data == first.data && p.trained == first.trained &&
             p.fp8 == first.fp8 && p.wide == first.wide;
    };
    for (; i < parameters_.size() && belongs(parameters_[i]); ++i) {
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

}  // namespace kintsugi
