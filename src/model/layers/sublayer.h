#pragma once

#include <memory>

#include "model/layers/linear.h"

namespace kintsugi {

// What a branch of the residual stream computes: a mixer (attention, …) or an MLP. Every rank of
// the tensor group has its heads or columns; only the last matmul, output(), is sharded by its
// inputs, so that its results are summands. The branch adds them up and puts the result on the
// residual stream.
class Sublayer {
 public:
  virtual ~Sublayer() = default;

  virtual void declare(Declaration& d) = 0;
  virtual const Linear& output() const = 0;
  virtual Tensor output_input(const LayerRun& run) const = 0;

  // From x (tokens, hidden) to output_input(). With run.cache, x continues the tokens seen before.
  virtual void forward(const LayerRun& run, Tensor x) const = 0;
  // Recomputes what Recompute::Selective dropped, but for x.
  virtual void recompute(const LayerRun& run) const { (void)run; }
  // From dy, the gradient of the output, to that of x.
  virtual void backward_input(const LayerRun& run, Tensor dx, Tensor dy) const = 0;
  // After backward_input, perhaps much later: the gradients of the matrices that read x.
  virtual void backward_weight(const LayerRun& run, Tensor x) const = 0;
};

}  // namespace kintsugi
