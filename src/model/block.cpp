#include "model/block.h"

namespace kintsugi {
namespace {

std::vector<std::string> optional_name(const std::string& name) {
  return name.empty() ? std::vector<std::string>{} : std::vector<std::string>{name};
}

}  // namespace

Block::Block(Backend& backend, const ParameterStore& store, const ModelConfig& config, int layer,
             const PositionTables& tables)
    : Block(backend, store, config, layer, tables, block_names(config, layer)) {}

Block::Block(Backend& backend, const ParameterStore& store, const ModelConfig& config, int layer,
             const PositionTables& tables, const BlockNames& names)
    : backend_(&backend),
      attention_site_(1 + 2 * static_cast<std::uint64_t>(layer)),
      mlp_site_(attention_site_ + 1),
      norm1_(backend, store, config.traits().norm, config.norm_eps, names.norm1_weight,
             names.norm1_bias),
      attention_(backend, store, config, names, tables),
      attention_out_(backend, store, {names.out_weight}, optional_name(names.out_bias),
                     config.traits().weights_in_out),
      norm2_(backend, store, config.traits().norm, config.norm_eps, names.norm2_weight,
             names.norm2_bias),
      mlp_(backend, store, config, names),
      mlp_down_(backend, store, {names.down_weight}, optional_name(names.down_bias),
                config.traits().weights_in_out) {}

void Block::forward(Tensor output, const BlockStash& stash, const BlockWorkspace& workspace,
                    const MicroBatch& batch, KvCache* cache) const {
  forward_to_activation(stash, workspace, batch, cache);
  add_branch(output, mlp_down_, stash.activated, stash.middle, workspace, batch, mlp_site_);
}

void Block::forward_to_activation(const BlockStash& stash, const BlockWorkspace& workspace,
                                  const MicroBatch& batch, KvCache* cache) const {
  norm1_.forward(stash.normed1, stash.norm1, stash.input);
  attention_.forward(stash, batch, cache);
  add_branch(stash.middle, attention_out_, stash.attended, stash.input, workspace, batch,
             attention_site_);
  norm2_.forward(stash.normed2, stash.norm2, stash.middle);
  mlp_.forward(stash);
}

void Block::backward(Tensor gradient, const BlockStash& stash, const BlockWorkspace& workspace,
                     const MicroBatch& batch, Recompute recompute) const {
  if (recompute == Recompute::Full) {
    forward_to_activation(stash, workspace, batch, nullptr);
  } else if (recompute == Recompute::Selective) {
    norm2_.forward(stash.normed2, stash.norm2, stash.middle);
    mlp_.activate(stash);
  }
  const Tensor dmlp = branch_gradient(gradient, workspace, batch, mlp_site_);
  mlp_down_.backward_weight(dmlp, stash.activated, !batch.first);
  mlp_.backward_input(workspace.dnormed, mlp_down_, dmlp, stash, workspace);
  mlp_.backward_weight(stash, workspace, !batch.first);
  norm2_.backward(gradient, workspace.dnormed, stash.middle, stash.norm2, gradient);

  // normed1 and normed2 share memory when they are recomputed, so this one waits for its turn.
  if (recompute != Recompute::None) norm1_.forward(stash.normed1, stash.norm1, stash.input);
  const Tensor dattention = branch_gradient(gradient, workspace, batch, attention_site_);
  attention_out_.backward_input(workspace.dattended, dattention);
  attention_out_.backward_weight(dattention, stash.attended, !batch.first);
  attention_.backward_input(workspace.dnormed, stash, workspace, batch);
  attention_.backward_weight(stash, workspace, !batch.first);
  norm1_.backward(gradient, workspace.dnormed, stash.input, stash.norm1, gradient);
}

void Block::add_branch(Tensor result, const Linear& linear, Tensor x, Tensor residual,
                       const BlockWorkspace& workspace, const MicroBatch& batch,
                       std::uint64_t site) const {
  if (batch.dropout == 0.0) return linear.forward(result, x, residual);
  linear.forward(workspace.branch, x);
  backend_->dropout(result, workspace.branch,
                    {.probability = batch.dropout,
                     .key = batch.dropout_key(site),
                     .first_row = batch.first_token},
                    residual);
}

Tensor Block::branch_gradient(Tensor gradient, const BlockWorkspace& workspace,
                              const MicroBatch& batch, std::uint64_t site) const {
  if (batch.dropout == 0.0) return gradient;
  backend_->dropout(workspace.branch, gradient,
                    {.probability = batch.dropout,
                     .key = batch.dropout_key(site),
                     .first_row = batch.first_token});
  return workspace.branch;
}

}  // namespace kintsugi
