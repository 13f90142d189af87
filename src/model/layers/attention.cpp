#include "model/layers/attention.h"

#include <cmath>
#include <vector>

#include "model/positions.h"

namespace kintsugi {
namespace {

// (tokens, heads, dim) as (sequences, length, heads, dim), strides kept.
Tensor by_sequence(const Tensor& x, const MicroBatch& batch) { return x.split_first(batch.length); }

}  // namespace

PositionTables allocate_position_tables(Arena& arena, const ModelConfig& config, DType dtype,
                                        std::int64_t positions) {
  PositionTables tables;
  if (config.traits().positions == PositionKind::Rope)
    tables.rope = arena.allocate(Region::Workspace, "rope table", accumulator_of(dtype),
                                 {positions, config.head_dim});
  if (config.traits().positions == PositionKind::Alibi)
    tables.slopes = arena.allocate(Region::Workspace, "alibi slopes", DType::F32, {config.heads});
  return tables;
}

void fill_position_tables(Backend& backend, const PositionTables& tables, const ModelConfig& config,
                          std::int64_t first_head) {
  if (tables.slopes) backend.upload(tables.slopes, alibi_slopes(config.heads).data() + first_head);
  if (!tables.rope) return;
  const std::vector<double> table = rope_table(config, tables.rope.extent(0));
  if (tables.rope.dtype() == DType::F64) {
    backend.upload(tables.rope, table.data());
  } else {
    const std::vector<float> narrow(table.begin(), table.end());
    backend.upload(tables.rope, narrow.data());
  }
}

Attention::Attention(Backend& backend, const ParameterStore& store, const ModelConfig& config,
                     const BlockNames& names, const PositionTables& tables,
                     const RingAttention* ring)
    : backend_(&backend),
      config_(config),
      tables_(tables),
      ring_(ring),
      projection_(backend, store, names.qkv_weight, names.qkv_bias,
                  config.traits().weights_in_out) {
  if (!config.traits().qk_norm) return;
  q_norm_.emplace(backend, store, NormKind::Rms, config.norm_eps, names.q_norm_weight, "");
  k_norm_.emplace(backend, store, NormKind::Rms, config.norm_eps, names.k_norm_weight, "");
}

Attention::Heads Attention::split(Tensor qkv) const {
  const Tensor heads = qkv.split_last(config_.head_dim);  // (tokens, heads + 2 kv_heads, dim)
  if (config_.traits().qkv_per_head) {                    // q0 k0 v0 q1 k1 v1 …
    const Tensor triples = qkv.split_last(3 * config_.head_dim);
    return {triples.part(2, 0, config_.head_dim),
            triples.part(2, config_.head_dim, config_.head_dim),
            triples.part(2, 2 * config_.head_dim, config_.head_dim)};
  }
  return {heads.part(1, 0, config_.heads), heads.part(1, config_.heads, config_.kv_heads),
          heads.part(1, config_.heads + config_.kv_heads, config_.kv_heads)};
}

Attention::Heads Attention::attention_inputs(const BlockStash& stash) const {
  Heads heads = split(stash.qkv);
  if (!q_norm_) return heads;
  const Tensor normed = stash.qk_normed.split_last(config_.head_dim);
  return {normed.part(1, 0, config_.heads), normed.part(1, config_.heads, config_.kv_heads),
          heads.v};
}

double Attention::scale() const { return 1.0 / std::sqrt(static_cast<double>(config_.head_dim)); }

AttentionOptions Attention::options(const MicroBatch& batch) const {
  return {.scale = scale(), .alibi_slopes = tables_.slopes, .document_start = batch.document_start};
}

void Attention::forward(Tensor x, const BlockStash& stash, const MicroBatch& batch,
                        KvCache* cache) const {
  projection_.forward(stash.qkv, x);
  const Heads heads = attention_inputs(stash);
  if (q_norm_) {
    const Heads raw = split(stash.qkv);
    q_norm_->forward(heads.q, {{}, stash.q_rstd}, raw.q);
    k_norm_->forward(heads.k, {{}, stash.k_rstd}, raw.k);
  }
  if (tables_.rope) {
    backend_->rope(heads.q, tables_.rope, batch.positions, false);
    backend_->rope(heads.k, tables_.rope, batch.positions, false);
  }
  const Tensor out = by_sequence(stash.attended.split_last(config_.head_dim), batch);
  const Tensor q = by_sequence(heads.q, batch);
  Tensor k = by_sequence(heads.k, batch), v = by_sequence(heads.v, batch);
  if (cache != nullptr) {
    const std::int64_t total = cache->length + batch.length;
    backend_->copy(cache->keys.flatten_first().rows(cache->length, batch.length), heads.k);
    backend_->copy(cache->values.flatten_first().rows(cache->length, batch.length), heads.v);
    k = cache->keys.part(1, 0, total);
    v = cache->values.part(1, 0, total);
    cache->length = total;
  }
  if (ring_ != nullptr)
    ring_->forward(out, stash.log_sum_exp, q, k, v, scale(), batch.document_start);
  else
    backend_->attention_forward(out, stash.log_sum_exp, q, k, v, options(batch));
}

void Attention::backward_input(Tensor dnormed, const BlockStash& stash,
                               const BlockWorkspace& workspace, const MicroBatch& batch) const {
  const Heads heads = attention_inputs(stash), gradient = split(workspace.dqkv);
  const auto view = [&](const Tensor& x) { return by_sequence(x, batch); };
  const auto run = [&](const auto& attention) {
    attention(view(gradient.q), view(gradient.k), view(gradient.v),
              view(workspace.dattended.split_last(config_.head_dim)),
              view(stash.attended.split_last(config_.head_dim)), stash.log_sum_exp, view(heads.q),
              view(heads.k), view(heads.v));
  };
  if (ring_ != nullptr)
    run([&](const auto&... all) { ring_->backward(all..., scale(), batch.document_start); });
  else
    run([&](const auto&... all) { backend_->attention_backward(all..., options(batch)); });
  if (tables_.rope) {
    backend_->rope(gradient.q, tables_.rope, batch.positions, true);
    backend_->rope(gradient.k, tables_.rope, batch.positions, true);
  }
  if (q_norm_) {
    const Heads raw = split(stash.qkv);
    q_norm_->backward(gradient.q, gradient.q, raw.q, {{}, stash.q_rstd});
    k_norm_->backward(gradient.k, gradient.k, raw.k, {{}, stash.k_rstd});
  }
  projection_.backward_input(dnormed, workspace.dqkv);
}

void Attention::backward_weight(Tensor x, const BlockWorkspace& workspace, bool accumulate) const {
  projection_.backward_weight(workspace.dqkv, x, accumulate);
}

}  // namespace kintsugi
