#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "model/declaration.h"
#include "model/layers/context_attention.h"
#include "model/micro_batch.h"
#include "model/parameter_store.h"
#include "model/positions.h"

namespace kintsugi {

// The ranks over which the matrices of a layer are sharded (tensor parallelism). Every rank has all
// rows of the residual stream or, with sequence parallelism (`splits_rows`), an equal part of them.
class TensorGroup {
 public:
  TensorGroup(Communicator& group, bool splits_rows)
      : group_(&group), splits_rows_(splits_rows && group.size() > 1) {}

  int size() const { return group_->size(); }
  int rank() const { return group_->rank(); }
  bool is_split() const { return size() > 1; }
  bool splits_rows() const { return splits_rows_; }
  Communicator& group() const { return *group_; }

  // The number of rows that this rank has, and the rows themselves.
  std::int64_t own_rows(std::int64_t rows) const { return splits_rows_ ? rows / size() : rows; }
  Tensor own(const Tensor& all) const {
    return splits_rows_ ? all.rows(rank() * own_rows(all.extent(0)), own_rows(all.extent(0))) : all;
  }

  // If rows are split, all-gathers `own` into `buffer` and returns that; otherwise returns `own`.
  Tensor all_rows(Tensor own, Tensor buffer) const;

  // Sums `partial` (all rows) over the ranks into `own`: a reduce-scatter if rows are split,
  // otherwise an all-reduce in place (`own` is `partial`). Neither may be used before finish().
  Communicator::Work start_sum(Tensor own, Tensor partial) const;
  void finish(Communicator::Work work) const { group_->wait(work); }
  void sum(Tensor own, Tensor partial) const { finish(start_sum(own, partial)); }

  // Options for dropout on this rank's rows.
  DropoutOptions dropout(const MicroBatch& batch, std::uint64_t site) const;

 private:
  Communicator* group_;
  bool splits_rows_;
};

// The sums over a step that layers declare: each rank adds its own part.
struct LayerSums {
  std::vector<SumSpec> specs;
  Tensor values;  // (specs), in accumulator precision

  Tensor operator[](std::string_view name) const;  // (1)
};

// What all layers of a rank share.
struct LayerContext {
  Backend* backend;
  const ParameterStore* store;
  TensorGroup tensor;
  PositionTables tables = {};
  LayerSums sums = {};
  // Context parallelism only:
  Communicator* context = nullptr;
  const ContextAttention* attention = nullptr;
  // Data ranks with other experts, if there are any:
  Communicator* experts = nullptr;
};

// Buffers of the residual stream's width, shared by all layers of a rank.
struct StreamBuffers {
  Tensor branch;       // (tokens, hidden): a branch's output before dropout, and its gradient
  Tensor own_branch;   // (rows, hidden): own rows of branch; same buffer unless rows are split
  Tensor gathered;     // (tokens, hidden): a norm's output from all ranks, if rows are split
  Tensor dnormed;      // (tokens, hidden): gradient of a norm's output
  Tensor own_dnormed;  // (rows, hidden): own rows of dnormed; same buffer unless rows are split

  StreamBuffers first(const BatchSize& size) const;
};
StreamBuffers allocate_stream_buffers(Arena& arena, std::int64_t hidden, DType dtype,
                                      const BatchSize& size, bool training);

// The declared caches of one layer, for all sequences of generation.
struct LayerCache {
  std::vector<Tensor> tensors;  // (rows or slots, elements each)
};

// The arguments of a layer's forward and backward: one micro-batch and its memory.
struct LayerRun {
  const LayerContext& context;
  const MicroBatch& batch;
  BatchSize size;
  StreamBuffers stream;
  // Memory of the block, sized for the largest micro-batch:
  std::span<const Tensor> saved_memory = {};
  std::span<const Tensor> workspace_memory = {};
  std::span<const Tensor> kept_gradients =
      {};  // by branch; only if the backward runs in two halves
  Recompute recompute = Recompute::None;
  bool repeats = false;               // a forward that ran before, for the backward
  const LayerCache* cache = nullptr;  // with batch.cached

  Backend& backend() const { return *context.backend; }
  const ParameterStore& store() const { return *context.store; }
  const TensorGroup& tensor() const { return context.tensor; }
  Tensor rows(const Tensor& x, Per per, std::int64_t most = 1) const {
    switch (per) {
      case Per::Bounded:
        return x.rows(0, most * size.tokens());
      case Per::Token:
        return x.rows(0, size.tokens());
      case Per::Row:
        return x.rows(0, size.rows());
      case Per::Sequence:
        return x.rows(0, size.sequences);
      case Per::Whole:
        break;
    }
    return x;
  }
  Tensor operator[](Saved id) const { return rows(saved_memory[at(id.index)], id.per, id.most); }
  Tensor operator[](Workspace id) const {
    return rows(workspace_memory[at(id.index)], id.per, id.most);
  }
  // All-gathers the rows of a tensor whose rows are split; otherwise returns the tensor.
  Tensor all_rows(const Tensor& own) const { return tensor().all_rows(own, stream.gathered); }
  // What generation asks of matmuls with weights; otherwise the defaults.
  MatmulOptions generation_options() const {
    return {.constant_b = batch.cached != nullptr,
            .rows_alike = batch.cached != nullptr && batch.cached->deterministic};
  }
  // Where to add this rank's part of a declared sum; empty if this forward is not counted.
  Tensor sum(std::string_view name) const {
    return batch.training && !repeats ? context.sums[name] : Tensor();
  }
  // Whether weight gradients are added to those of earlier micro-batches.
  bool accumulates() const { return !batch.overwrites; }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
};

}  // namespace kintsugi
