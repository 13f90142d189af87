#include "model/block.h"

#include <fmt/core.h>

#include "core/error.h"

namespace kintsugi {

// ---- specs

std::vector<LinearUse> LayerSpec::linears() {
  std::vector<LinearUse> all;
  for (BranchSpec& branch : branches)
    for (LinearUse& use : branch.sublayer.linears()) all.push_back(std::move(use));
  return all;
}

void clear_names_of(NormSpec& spec) { spec.name.clear(); }

void clear_names_of(LinearSpec& spec) {
  for (std::string& name : spec.weights) name.clear();
  for (std::string& name : spec.biases) name.clear();
  for (std::string& name : spec.adapters.names)
    if (!name.empty()) name = "adapter";
  if (spec.fp8) spec.fp8->site = 0;
}

void LayerSpec::clear_names() {
  for (BranchSpec& branch : branches) {
    for (std::optional<NormSpec>* const norm : {&branch.before, &branch.after})
      if (*norm) clear_names_of(**norm);
    branch.sublayer.clear_names();
  }
}

// ---- a branch

Branch::Branch(const BranchSpec& spec, std::int64_t hidden, std::uint64_t site)
    : hidden_(hidden), site_(site), sublayer_(spec.sublayer.make()) {
  if (spec.before) before_.emplace(*spec.before);
  if (spec.after) after_.emplace(*spec.after);
}

void Branch::declare(Declaration& d) {
  if (before_) {
    before_->declare(d, hidden_);
    before_->declare_statistics(d);
  }
  sublayer_->declare(d);
  Linear* const reader = sublayer_->reader_of_x();
  if (before_)
    normed_ = d.saved({.label = "norm outputs",
                       .per = Per::Row,
                       .width = hidden_,
                       .dropped_by = Recompute::Selective,
                       .one_at_a_time = true,
                       .temporary = reader != nullptr && reader->keeps_input()});
  // If rows are split, the matmul reads the rows of all ranks, which are gathered after the norm.
  if (before_ && reader != nullptr && !d.ranks().splits_rows())
    reader->fp8().take_input_maxima(d, "norm maxima");
  if (!after_) return;
  after_->declare(d, hidden_);
  after_->declare_statistics(d);
  summed_ = d.saved({.label = "branch outputs", .per = Per::Row, .width = hidden_});
}

void Branch::take_gradient_maxima(Declaration& d) {
  Linear* const reader = sublayer_->reader_of_dy();
  if (!after_ && reader != nullptr && !d.ranks().splits_rows())
    reader->fp8().take_gradient_maxima(d);
}

Maxima Branch::gradient_maxima(const LayerRun& run) const {
  const Linear* const reader = sublayer_->reader_of_dy();
  return reader != nullptr ? reader->gradient_maxima(run) : Maxima();
}

Tensor Branch::sublayer_input(const LayerRun& run, Tensor input) const {
  return run.all_rows(before_ ? run[normed_] : input);
}

void Branch::recompute_norm(const LayerRun& run, Tensor input) const {
  if (!before_) return;
  const Linear* const reader = sublayer_->reader_of_x();
  before_->forward(run, run[normed_], before_->statistics(run), input,
                   reader != nullptr ? reader->input_maxima(run) : Maxima());
}

void Branch::recompute(const LayerRun& run, Tensor input) const {
  recompute_norm(run, input);
  sublayer_->recompute(run);
}

void Branch::forward_to_output(const LayerRun& run, Tensor input) const {
  recompute_norm(run, input);
  sublayer_->forward(run, sublayer_input(run, input));
}

void Branch::add_output(const LayerRun& run, Tensor output, Tensor input) const {
  if (!run.tensor().is_split() && !after_ && run.batch.dropout == 0.0)
    return sublayer_->output(run, output, input);
  run.backend().dropout(output, branch_output(run), run.tensor().dropout(run.batch, site_), input);
}

Tensor Branch::branch_output(const LayerRun& run) const {
  const TensorGroup& tensor = run.tensor();
  const Tensor own = run.stream.own_branch, summed = after_ ? run[summed_] : own;
  const Tensor partial = tensor.splits_rows() ? run.stream.branch : summed;
  sublayer_->output(run, partial, {});
  tensor.sum(summed, partial);
  if (after_) after_->forward(run, own, after_->statistics(run), summed);
  return own;
}

// The all-reduce over the tensor group overlaps with the weight gradients.
void Branch::backward(const LayerRun& run, Tensor gradient, Tensor input, Tensor kept,
                      const Maxima& maxima) const {
  const TensorGroup& tensor = run.tensor();
  const StreamBuffers& stream = run.stream;
  const Tensor own = branch_gradient(run, gradient, kept);
  const Tensor dy = tensor.all_rows(own, stream.branch);
  if (run.batch.dropout != 0.0)  // it has changed what the norm before the next branch wrote
    if (const Maxima changed = gradient_maxima(run)) run.backend().find_maxima(changed, dy);
  sublayer_->backward_input(run, stream.dnormed, dy);
  const auto sum = tensor.start_sum(stream.own_dnormed, stream.dnormed);
  if (!kept) {
    sublayer_->backward_output_weight(run, dy, own);
    sublayer_->backward_weight(run, sublayer_input(run, input));
  }
  tensor.finish(sum);
  if (before_)
    before_->backward(run, gradient, stream.own_dnormed, input, before_->statistics(run), gradient,
                      maxima);
  else
    run.backend().add(gradient, stream.own_dnormed);
}

void Branch::backward_weight(const LayerRun& run, Tensor input, Tensor kept) const {
  sublayer_->backward_weight(run, sublayer_input(run, input));
  sublayer_->backward_output_weight(run, run.tensor().all_rows(kept, run.stream.branch), kept);
}

// Returns the gradient of the sublayer's output, which is stored in `kept` if there is one.
Tensor Branch::branch_gradient(const LayerRun& run, Tensor gradient, Tensor kept) const {
  if (run.batch.dropout == 0.0 && !kept && !after_) return gradient;
  const Tensor before = kept ? kept : run.stream.own_branch;
  if (!after_ || run.batch.dropout != 0.0)
    run.backend().dropout(before, gradient, run.tensor().dropout(run.batch, site_));
  if (after_)
    after_->backward(run, before, run.batch.dropout != 0.0 ? before : gradient, run[summed_],
                     after_->statistics(run));
  return before;
}

// ---- a block

Block::Block(const ModelSpec& model, int layer) : hidden_(model.hidden_size) {
  const LayerSpec& spec = model.layers[layer];
  std::uint64_t site = 1;  // 0 is the embedding
  for (int i = 0; i < layer; ++i) site += model.layers[i].branches.size();
  for (const BranchSpec& branch : spec.branches) branches_.emplace_back(branch, hidden_, site++);
}

void Block::declare(Declaration& d) {
  for (std::size_t i = 0; i < branches_.size(); ++i) {
    if (i > 0)
      middles_.push_back(d.saved({.label = "block middles", .per = Per::Row, .width = hidden_}));
    branches_[i].declare(d);
    if (i > 0 && branches_[i].has_norm_before()) branches_[i - 1].take_gradient_maxima(d);
  }
}

void Block::forward_to_output(const LayerRun& run, Tensor input) const {
  for (std::size_t i = 0; i < branches_.size(); ++i) {
    if (i > 0)
      branches_[i - 1].add_output(run, input_of(run, input, i), input_of(run, input, i - 1));
    branches_[i].forward_to_output(run, input_of(run, input, i));
  }
}

void Block::forward(const LayerRun& run, Tensor output, Tensor input) const {
  forward_to_output(run, input);
  branches_.back().add_output(run, output, input_of(run, input, branches_.size() - 1));
}

// Dropped norm outputs share one buffer, so each is recomputed just before its use. backward_input
// reads nothing that Recompute::Selective drops.
void Block::recompute(const LayerRun& run, Tensor input, std::size_t branch) const {
  const Tensor from = input_of(run, input, branch);
  LayerRun again = run;
  again.repeats = true;
  if (run.recompute == Recompute::Full && branch + 1 == branches_.size()) {
    forward_to_output(again, input);
    branches_[branch].recompute_output(again);
  } else if (run.recompute == Recompute::Full) {
    branches_[branch].recompute_norm(again, from);
  } else if (run.recompute == Recompute::Selective) {
    branches_[branch].recompute(again, from);
  }
}

void Block::backward(const LayerRun& run, Tensor gradient, Tensor input) const {
  const bool halved = !run.kept_gradients.empty();
  for (std::size_t i = branches_.size(); i-- > 0;) {
    const bool last = i + 1 == branches_.size();
    if (!halved || (last && run.recompute == Recompute::Full)) recompute(run, input, i);
    branches_[i].backward(
        run, gradient, input_of(run, input, i), kept(run, i),
        i > 0 && run.batch.dropout == 0.0 ? branches_[i - 1].gradient_maxima(run) : Maxima());
  }
}

void Block::backward_weight(const LayerRun& run, Tensor input) const {
  for (std::size_t i = branches_.size(); i-- > 0;) {
    recompute(run, input, i);
    branches_[i].backward_weight(run, input_of(run, input, i), kept(run, i));
  }
}

// Calls f(tensor, key) for each tensor. With `sharing`, one_at_a_time tensors of a label have one
// key.
void SharedMemory::for_each(const std::vector<TensorSpec>& specs, bool sharing, const auto& f) {
  std::map<std::string_view, int> seen;
  for (const TensorSpec& spec : specs)
    f(spec, Key{spec.label, sharing && spec.one_at_a_time ? 0 : seen[spec.label]++});
}

bool SharedMemory::shares(const TensorSpec& saved, Recompute recompute) const {
  if (!training_ || saved.temporary) return true;
  return recompute != Recompute::None && !saved.kept && saved.dropped_by <= recompute;
}

DType SharedMemory::dtype_of(const TensorSpec& spec) const {
  if (spec.bytes) return DType::U8;
  if (spec.indices) return DType::I32;
  return spec.wide ? accumulator_of(dtype_) : dtype_;
}

Shape SharedMemory::shape_of(const TensorSpec& spec) const {
  return spec.bytes ? Shape{spec.bytes(size_, dtype_, training_)} : spec.shape(size_);
}

Tensor SharedMemory::view(const Tensor& memory, const TensorSpec& spec) const {
  if (!memory) return memory;
  KINTSUGI_CHECK(shape_of(spec).elements() <= memory.elements(), "{}: {} in memory for {}",
                 spec.label, to_string(shape_of(spec)), to_string(memory.shape()));
  return Tensor(memory.data(), memory.dtype(), shape_of(spec));
}

SharedMemory::SharedMemory(Arena& arena, const std::vector<Declaration>& blocks, DType dtype,
                           const BatchSize& size, Recompute recompute, bool training)
    : dtype_(dtype), size_(size), training_(training) {
  struct Need {
    Key key;
    TensorSpec largest;
  };
  const auto collect = [&](auto&& list) {
    std::vector<Need> needs;  // in order of declaration
    for (const Declaration& block : blocks)
      list(block, [&](const TensorSpec& spec, const Key& key) {
        for (Need& need : needs)
          if (need.key == key) {
            if (shape_of(spec).elements() > shape_of(need.largest).elements()) need.largest = spec;
            return;
          }
        needs.push_back({key, spec});
      });
    return needs;
  };
  const auto saved = collect([&](const Declaration& block, const auto& add) {
    for_each(block.saved(), training, [&](const TensorSpec& spec, const Key& key) {
      if (shares(spec, recompute)) add(spec, key);
    });
  });
  for (const Need& need : saved)
    saved_[need.key] =
        arena.allocate(training ? Region::Workspace : Region::Activations,
                       fmt::format("{}{}", training && !need.largest.temporary ? "recomputed " : "",
                                   need.key.first),
                       dtype_of(need.largest), shape_of(need.largest));
  const auto workspace = collect([&](const Declaration& block, const auto& add) {
    for_each(block.workspace(), true, [&](const TensorSpec& spec, const Key& key) {
      if (training || !spec.training) add(spec, key);
    });
  });
  for (const Need& need : workspace)
    workspace_[need.key] = arena.allocate(Region::Workspace, std::string(need.key.first),
                                          dtype_of(need.largest), shape_of(need.largest));
}

BlockMemory SharedMemory::allocate_block(Arena& arena, const Declaration& block,
                                         Recompute recompute) const {
  BlockMemory memory;
  for_each(block.saved(), training_, [&](const TensorSpec& spec, const Key& key) {
    memory.saved.push_back(shares(spec, recompute) ? view(saved_.at(key), spec)
                                                   : allocate(arena, spec));
  });
  return memory;
}

BlockMemory SharedMemory::allocate_own(Arena& arena, const Declaration& layer) const {
  BlockMemory memory;
  for (const TensorSpec& spec : layer.saved()) memory.saved.push_back(allocate(arena, spec));
  return memory;
}

Tensor SharedMemory::allocate(Arena& arena, const TensorSpec& spec) const {
  return arena.allocate(Region::Activations, std::string(spec.label), dtype_of(spec),
                        shape_of(spec));
}

std::vector<Tensor> SharedMemory::workspace(const Declaration& block) const {
  std::vector<Tensor> tensors;
  for_each(block.workspace(), true, [&](const TensorSpec& spec, const Key& key) {
    const auto found = workspace_.find(key);
    tensors.push_back(found == workspace_.end() ? Tensor() : view(found->second, spec));
  });
  return tensors;
}

KeptMemory SharedMemory::allocate_kept(Arena& arena, const Declaration& block, int branches,
                                       std::int64_t hidden) const {
  const auto take = [&](std::string_view label, DType dtype, const Shape& shape) {
    return arena.allocate(Region::Activations, fmt::format("kept {}", label), dtype, shape);
  };
  KeptMemory kept{.workspace = workspace(block), .gradients = {}};
  for (std::size_t i = 0; i < kept.workspace.size(); ++i)
    if (const TensorSpec& spec = block.workspace()[i]; spec.read_by_weights)
      kept.workspace[i] = take(spec.label, dtype_of(spec), shape_of(spec));
  for (int i = 0; i < branches; ++i)
    kept.gradients.push_back(take("gradient of branches", dtype_, {size_.rows(), hidden}));
  return kept;
}

}  // namespace kintsugi
