#pragma once

#include <cstdint>
#include <vector>

#include "model/layers/layer_run.h"

namespace kintsugi {

// What follows the name of a module in those of its adapters, and PEFT's initial A: uniform with
// Kaiming's bound for a = sqrt(5). B starts from 0.
inline constexpr const char *kAdapterA = ".lora_A.weight", *kAdapterB = ".lora_B.weight";
Init adapter_init(std::int64_t inputs);

// The low-rank adapters of the matrices of a Linear (LoraConfig): for each matrix with one, its
// columns of y have scale * (dropout(x) A^T) B^T in addition. The A of all matrices are one matmul,
// and share the dropout of x.
//
// If a Linear is sharded by outputs, A is on all tensor ranks and B is sharded as its matrix; if it
// is sharded by inputs, A is sharded and B on all ranks. So no rank has to communicate: the sum of
// the partial results, which a Linear has anyway, includes the adapters.
class Adapters {
 public:
  explicit Adapters(const AdapterSpec& spec) : spec_(spec) {}

  bool any() const { return spec_.any(); }
  // After the matrices, which have these shards: `outputs` are their columns on this rank. `whole`
  // are the columns and inputs on all ranks.
  struct Sizes {
    std::vector<std::int64_t> outputs, whole_outputs;
    std::int64_t inputs = 0, whole_inputs = 0;
  };
  void declare(Declaration& d, const Sizes& sizes, const std::vector<Declaration::Shard>& shards);

  // These run before the matmul with the frozen matrices, which adds its result: that is cheaper,
  // and rounds once. y = [residual +] adapters, 0 in the columns of matrices without one.
  void forward(const LayerRun& run, Tensor y, Tensor x, Tensor residual) const;
  void backward_input(const LayerRun& run, Tensor dx, Tensor dy) const;  // dx = …
  // After backward_input().
  void backward_weight(const LayerRun& run, Tensor dy, Tensor x) const;

 private:
  struct Matrix {
    int b = -1;
    std::int64_t first = 0, outputs = 0;  // columns of y
  };
  bool drops(const LayerRun& run) const { return spec_.dropout > 0 && run.batch.training; }
  DropoutOptions dropout(const LayerRun& run) const;
  Tensor input(const LayerRun& run, Tensor x) const;  // x, or its dropout
  Tensor a(const LayerRun& run) const { return run.store().weight(a_, a_shape_); }
  void for_each(Tensor low, Tensor y, const auto& f) const;

  AdapterSpec spec_;
  int a_ = -1;
  Shape a_shape_;  // (adapters * r, inputs on this rank)
  std::int64_t first_input_ = 0, whole_inputs_ = 0;
  std::vector<Matrix> matrices_;
  Saved low_;          // (tokens, adapters * r): dropout(x) A^T
  Workspace dlow_;     // like low_
  Workspace dropped_;  // (tokens, inputs), with dropout
};

}  // namespace kintsugi
