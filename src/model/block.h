#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "model/layers/norm.h"
#include "model/layers/sublayer.h"

namespace kintsugi {

// One branch of the residual stream: output = input + after(sublayer(before(input))). Both norms
// are optional.
class Branch {
 public:
  // `site` is the number of the branch within the model; it selects the dropout random numbers.
  Branch(const BranchSpec& spec, std::int64_t hidden, std::uint64_t site);

  void declare(Declaration& d);
  bool has_norm_before() const { return before_.has_value(); }
  // Who writes the gradient of this branch's output, the norm before the next branch, finds its
  // maxima for the sublayer's last matmul. Empty if that does not need them.
  void take_gradient_maxima(Declaration& d);
  Maxima gradient_maxima(const LayerRun& run) const;

  // Computes everything before the sublayer's output.
  void forward_to_output(const LayerRun& run, Tensor input) const;
  // Computes the output and adds it to the residual stream.
  void add_output(const LayerRun& run, Tensor output, Tensor input) const;
  // Recomputes the sublayer's input.
  void recompute_norm(const LayerRun& run, Tensor input) const;
  // Recomputes everything that Recompute::Selective dropped.
  void recompute(const LayerRun& run, Tensor input) const;
  // Recomputes what add_output() saves for the backward.
  void recompute_output(const LayerRun& run) const {
    if (after_) branch_output(run);
  }

  // `gradient` is that of the output on entry and of the input on return. With `kept`, the weight
  // gradients are not computed: the gradient of the sublayer's output is stored in `kept` for
  // backward_weight(). The maxima are those of the input's gradient, if they are wanted.
  void backward(const LayerRun& run, Tensor gradient, Tensor input, Tensor kept,
                const Maxima& maxima) const;
  void backward_weight(const LayerRun& run, Tensor input, Tensor kept) const;

 private:
  Tensor sublayer_input(const LayerRun& run, Tensor input) const;
  Tensor branch_output(const LayerRun& run) const;  // (rows, hidden), before dropout
  Tensor branch_gradient(const LayerRun& run, Tensor gradient, Tensor kept) const;

  std::int64_t hidden_;
  std::uint64_t site_;
  std::optional<Norm> before_, after_;
  std::shared_ptr<Sublayer> sublayer_;
  Saved normed_;  // (rows, hidden): the sublayer's input
  Saved summed_;  // (rows, hidden): the sublayer's output, before the norm `after`
};

// One transformer block: its branches run in order.
class Block {
 public:
  Block(const ModelSpec& model, int layer);

  void declare(Declaration& d);
  int branches() const { return static_cast<int>(branches_.size()); }

  // Also fills the saved tensors.
  void forward(const LayerRun& run, Tensor output, Tensor input) const;
  // `gradient` is that of the output on entry and of the input on return. Dropped tensors are
  // recomputed first. With run.kept_gradients, the gradients of matrices (not those of norms) are
  // left to backward_weight(), which may run any time later.
  void backward(const LayerRun& run, Tensor gradient, Tensor input) const;
  void backward_weight(const LayerRun& run, Tensor input) const;

 private:
  Tensor input_of(const LayerRun& run, Tensor input, std::size_t branch) const {
    return branch == 0 ? input : run[middles_[branch - 1]];
  }
  // Computes everything but the last branch's output.
  void forward_to_output(const LayerRun& run, Tensor input) const;
  void recompute(const LayerRun& run, Tensor input, std::size_t branch) const;
  Tensor kept(const LayerRun& run, std::size_t branch) const {
    return run.kept_gradients.empty() ? Tensor() : run.rows(run.kept_gradients[branch], Per::Row);
  }

  std::int64_t hidden_;
  std::vector<Branch> branches_;
  std::vector<Saved> middles_;  // (rows, hidden): between branches
};

// What a block keeps of one micro-batch between forward and backward.
struct BlockMemory {
  std::vector<Tensor> saved;  // by Saved handle
  Tensor input;               // (rows, hidden), if the block keeps its own copy
};

// What a block keeps between the two halves of a backward (backward_input and backward_weight).
struct KeptMemory {
  std::vector<Tensor> workspace;  // by Workspace handle; private where read_by_weights, else shared
  std::vector<Tensor> gradients;  // (rows, hidden), by branch: of the sublayer's output
};

// Memory that all blocks of a rank share: workspace, and saved tensors that are dropped and
// recomputed. Without training, all saved tensors. If blocks differ, the largest size is allocated.
class SharedMemory {
 public:
  SharedMemory(Arena& arena, const std::vector<Declaration>& blocks, DType dtype,
               const BatchSize& size, Recompute recompute, bool training);

  // Memory of one block: tensors that cannot be shared are allocated from the arena.
  BlockMemory allocate_block(Arena& arena, const Declaration& block, Recompute recompute) const;
  // Memory of one layer, all of it allocated from the arena.
  BlockMemory allocate_own(Arena& arena, const Declaration& layer) const;
  std::vector<Tensor> workspace(const Declaration& block) const;
  KeptMemory allocate_kept(Arena& arena, const Declaration& block, int branches,
                           std::int64_t hidden) const;

 private:
  // A tensor's label and its index among the tensors of a block with that label.
  using Key = std::pair<std::string_view, int>;
  static void for_each(const std::vector<TensorSpec>& specs, bool sharing, const auto& f);
  bool shares(const TensorSpec& saved, Recompute recompute) const;
  DType dtype_of(const TensorSpec& spec) const;
  Shape shape_of(const TensorSpec& spec) const;
  Tensor allocate(Arena& arena, const TensorSpec& spec) const;
  Tensor view(const Tensor& memory, const TensorSpec& spec) const;

  DType dtype_;
  BatchSize size_;
  bool training_;
  std::map<Key, Tensor> saved_, workspace_;
};

}  // namespace kintsugi
