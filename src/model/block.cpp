#include "model/block.h"

namespace kintsugi {
namespace {

std::vector<std::string> optional_name(const std::string& name) {
  return name.empty() ? std::vector<std::string>{} : std::vector<std::string>{name};
}

}  // namespace

Block::Block(const BlockContext& context, int layer)
    : Block(context, layer, block_names(context.local, layer)) {}

Block::Block(const BlockContext& c, int layer, const BlockNames& names)
    : backend_(c.backend),
      tensor_(c.tensor),
      attention_site_(1 + 2 * static_cast<std::uint64_t>(layer)),
      mlp_site_(attention_site_ + 1),
      norm1_(*c.backend, *c.store, c.local.traits().norm, c.local.norm_eps, names.norm1_weight,
             names.norm1_bias),
      attention_(*c.backend, *c.store, c.local, names, c.tables, c.ring),
      attention_out_(*c.backend, *c.store, {names.out_weight}, optional_name(names.out_bias),
                     c.local.traits().weights_in_out),
      norm2_(*c.backend, *c.store, c.local.traits().norm, c.local.norm_eps, names.norm2_weight,
             names.norm2_bias),
      mlp_(*c.backend, *c.store, c.local, names),
      mlp_down_(*c.backend, *c.store, {names.down_weight}, optional_name(names.down_bias),
                c.local.traits().weights_in_out) {}

// ---- forward

void Block::forward(Tensor output, const BlockStash& stash, const BlockWorkspace& workspace,
                    const MicroBatch& batch, KvCache* cache) const {
  forward_to_activation(stash, workspace, batch, cache);
  add_branch(output, mlp_down_, stash.activated, stash.middle, workspace, batch, mlp_site_);
}

void Block::forward_to_activation(const BlockStash& stash, const BlockWorkspace& workspace,
                                  const MicroBatch& batch, KvCache* cache) const {
  norm1_.forward(stash.normed1, stash.norm1, stash.input);
  attention_.forward(tensor_.all_rows(stash.normed1, workspace.gathered), stash, batch, cache);
  add_branch(stash.middle, attention_out_, stash.attended, stash.input, workspace, batch,
             attention_site_);
  norm2_.forward(stash.normed2, stash.norm2, stash.middle);
  mlp_.forward(tensor_.all_rows(stash.normed2, workspace.gathered), stash);
}

void Block::add_branch(Tensor result, const Linear& linear, Tensor x, Tensor residual,
                       const BlockWorkspace& workspace, const MicroBatch& batch,
                       std::uint64_t site) const {
  if (!tensor_.is_split()) {
    if (batch.dropout == 0.0) return linear.forward(result, x, residual);
    linear.forward(workspace.branch, x);
  } else {
    linear.forward_partial(workspace.branch, x, tensor_.rank() == 0);
    tensor_.sum(workspace.own_branch, workspace.branch);
  }
  backend_->dropout(result, workspace.own_branch, tensor_.dropout(batch, site), residual);
}

// ---- backward

void Block::backward(Tensor gradient, const BlockStash& stash, const BlockWorkspace& workspace,
                     const MicroBatch& batch, Recompute recompute) const {
  rebuild(stash, workspace, batch, recompute);
  backward_mlp(gradient, stash, workspace, batch, Weights::Now);
  // normed1 and normed2 share memory when they are recomputed, so this one waits for its turn.
  if (recompute != Recompute::None) norm1_.forward(stash.normed1, stash.norm1, stash.input);
  backward_attention(gradient, stash, workspace, batch, Weights::Now);
}

void Block::backward_input(Tensor gradient, const BlockStash& stash,
                           const BlockWorkspace& workspace, const MicroBatch& batch,
                           Recompute recompute) const {
  rebuild(stash, workspace, batch, recompute);
  backward_mlp(gradient, stash, workspace, batch, Weights::Later);
  backward_attention(gradient, stash, workspace, batch, Weights::Later);
}

void Block::backward_weight(const BlockStash& stash, const BlockWorkspace& workspace,
                            const MicroBatch& batch, Recompute recompute) const {
  rebuild(stash, workspace, batch, recompute);
  const bool accumulate = !batch.overwrites;
  mlp_.backward_weight(tensor_.all_rows(stash.normed2, workspace.gathered), workspace, accumulate);
  mlp_down_.backward_weight(tensor_.all_rows(workspace.kept_mlp, workspace.branch), stash.activated,
                            accumulate, workspace.kept_mlp);
  if (recompute != Recompute::None) norm1_.forward(stash.normed1, stash.norm1, stash.input);
  attention_.backward_weight(tensor_.all_rows(stash.normed1, workspace.gathered), workspace,
                             accumulate);
  attention_out_.backward_weight(tensor_.all_rows(workspace.kept_attention, workspace.branch),
                                 stash.attended, accumulate, workspace.kept_attention);
}

void Block::rebuild(const BlockStash& stash, const BlockWorkspace& workspace,
                    const MicroBatch& batch, Recompute recompute) const {
  if (recompute == Recompute::Full) {
    forward_to_activation(stash, workspace, batch, nullptr);
  } else if (recompute == Recompute::Selective) {
    norm2_.forward(stash.normed2, stash.norm2, stash.middle);
    mlp_.activate(stash);
  }
}

// Sums over the tensor group travel while the products of weights run.
void Block::backward_mlp(Tensor gradient, const BlockStash& stash, const BlockWorkspace& workspace,
                         const MicroBatch& batch, Weights weights) const {
  const bool now = weights == Weights::Now;
  const Tensor own = branch_gradient(gradient, workspace.kept_mlp, workspace, batch, mlp_site_);
  const Tensor dbranch = tensor_.all_rows(own, workspace.branch);
  if (now) mlp_down_.backward_weight(dbranch, stash.activated, !batch.overwrites, own);
  mlp_.backward_input(workspace.dnormed, mlp_down_, dbranch, stash, workspace);
  const auto sum = tensor_.start_sum(workspace.own_dnormed, workspace.dnormed);
  if (now)
    mlp_.backward_weight(tensor_.all_rows(stash.normed2, workspace.gathered), workspace,
                         !batch.overwrites);
  tensor_.finish(sum);
  norm2_.backward(gradient, workspace.own_dnormed, stash.middle, stash.norm2, gradient);
}

void Block::backward_attention(Tensor gradient, const BlockStash& stash,
                               const BlockWorkspace& workspace, const MicroBatch& batch,
                               Weights weights) const {
  const bool now = weights == Weights::Now;
  const Tensor own =
      branch_gradient(gradient, workspace.kept_attention, workspace, batch, attention_site_);
  const Tensor dbranch = tensor_.all_rows(own, workspace.branch);
  attention_out_.backward_input(workspace.dattended, dbranch);
  if (now) attention_out_.backward_weight(dbranch, stash.attended, !batch.overwrites, own);
  attention_.backward_input(workspace.dnormed, stash, workspace, batch);
  const auto sum = tensor_.start_sum(workspace.own_dnormed, workspace.dnormed);
  if (now)
    attention_.backward_weight(tensor_.all_rows(stash.normed1, workspace.gathered), workspace,
                               !batch.overwrites);
  tensor_.finish(sum);
  norm1_.backward(gradient, workspace.own_dnormed, stash.input, stash.norm1, gradient);
}

Tensor Block::branch_gradient(Tensor gradient, Tensor kept, const BlockWorkspace& workspace,
                              const MicroBatch& batch, std::uint64_t site) const {
  if (batch.dropout == 0.0 && !kept) return gradient;
  const Tensor before = kept ? kept : workspace.own_branch;
  backend_->dropout(before, gradient, tensor_.dropout(batch, site));
  return before;
}

}  // namespace kintsugi
