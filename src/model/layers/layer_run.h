#pragma once

#include <span>
#include <vector>

#include "model/declaration.h"
#include "model/layers/ring_attention.h"
#include "model/layers/tensor_group.h"
#include "model/micro_batch.h"
#include "model/parameter_store.h"
#include "model/positions.h"

namespace kintsugi {

// What all layers of a rank have in common.
struct LayerContext {
  Backend* backend;
  const ParameterStore* store;
  TensorGroup tensor;
  PositionTables tables = {};
  // Where sequences are cut among ranks:
  Communicator* context = nullptr;
  const RingAttention* ring = nullptr;
};

// Buffers of the residual stream's width, which all layers of a rank share.
struct StreamBuffers {
  Tensor branch;       // (tokens, hidden): a branch's output before dropout, and its gradient
  Tensor own_branch;   // (rows, hidden) of it; branch itself unless rows are split
  Tensor gathered;     // (tokens, hidden): a norm's output of all ranks, if rows are split
  Tensor dnormed;      // (tokens, hidden)
  Tensor own_dnormed;  // (rows, hidden) of it; dnormed itself unless rows are split

  StreamBuffers first(const BatchSize& size) const;
};
StreamBuffers allocate_stream_buffers(Arena& arena, std::int64_t hidden, DType dtype,
                                      const BatchSize& size, bool training);

// What generation keeps of one layer: the declared caches of one sequence.
struct LayerCache {
  std::vector<Tensor> tensors;
  std::vector<std::string_view> labels;  // of the tensors
  std::int64_t length = 0;               // tokens seen
};

// What layers run with: one micro-batch and the memory for it.
struct LayerRun {
  const LayerContext& context;
  const MicroBatch& batch;
  BatchSize size;
  StreamBuffers stream;
  // Of a block, as large as the largest micro-batch:
  std::span<const Tensor> saved_memory = {};
  std::span<const Tensor> workspace_memory = {};
  std::span<const Tensor> kept_gradients = {};  // of the branches; for a backward in halves
  Recompute recompute = Recompute::None;
  LayerCache* cache = nullptr;

  Backend& backend() const { return *context.backend; }
  const ParameterStore& store() const { return *context.store; }
  const TensorGroup& tensor() const { return context.tensor; }
  Tensor rows(const Tensor& x, Per per) const {
    switch (per) {
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
  Tensor operator[](Saved id) const { return rows(saved_memory[at(id.index)], id.per); }
  Tensor operator[](Workspace id) const { return rows(workspace_memory[at(id.index)], id.per); }
  // All rows of a tensor of which every rank has some.
  Tensor all_rows(const Tensor& own) const { return tensor().all_rows(own, stream.gathered); }
  // Matmuls overwrite the gradients of a step's first micro-batch.
  bool accumulates() const { return !batch.overwrites; }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
};

}  // namespace kintsugi
