#pragma once

#include <memory>

#include "model/layers/linear.h"

namespace kintsugi {

// What a branch of the residual stream computes: a token mixer (attention, retention) or an MLP.
// Each tensor rank has some of the heads or columns. Only the last matmul, output(), is sharded by
// its inputs; the branch all-reduces its partial sums and adds the result to the residual stream.
class Sublayer {
 public:
  virtual ~Sublayer() = default;

  virtual void declare(Declaration& d) = 0;
  virtual Linear& input() = 0;  // reads x
  virtual Linear& output() = 0;
  virtual Tensor output_input(const LayerRun& run) const = 0;

  // Computes output_input() from x (tokens, hidden). With batch.cached, x continues the tokens in
  // run.cache.
  virtual void forward(const LayerRun& run, Tensor x) const = 0;
  // Recomputes what Recompute::Selective dropped, except x.
  virtual void recompute(const LayerRun& run) const { (void)run; }
  // Computes the gradient of x from dy, the gradient of the output. Must not read what recompute()
  // writes, unless it is saved too: a halved backward calls recompute() only in its second half.
  virtual void backward_input(const LayerRun& run, Tensor dx, Tensor dy) const = 0;
  // Computes the gradients of the matrices that read x. Called after backward_input(), perhaps much
  // later.
  virtual void backward_weight(const LayerRun& run, Tensor x) const = 0;
};

}  // namespace kintsugi
