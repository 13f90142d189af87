#pragma once

#include <memory>

#include "model/layers/linear.h"

namespace kintsugi {

// What a branch of the residual stream computes: a token mixer (attention, retention) or an MLP.
// Each tensor rank has some of the heads, columns or matrices, and computes a partial sum of the
// output; the branch all-reduces these and adds the result to the residual stream.
class Sublayer {
 public:
  virtual ~Sublayer() = default;

  virtual void declare(Declaration& d) = 0;

  // Computes everything before the output from x (tokens, hidden). With batch.cached, x continues
  // the tokens in run.cache.
  virtual void forward(const LayerRun& run, Tensor x) const = 0;
  // Computes the output, or this rank's partial sum of it: y (tokens, hidden), plus `residual` if
  // there is one.
  virtual void output(const LayerRun& run, Tensor y, Tensor residual) const = 0;
  // Recomputes what Recompute::Selective dropped, except x.
  virtual void recompute(const LayerRun& run) const { (void)run; }
  // Computes the gradient of x from dy, the gradient of the output. Must not read what recompute()
  // writes, unless it is saved too: a halved backward calls recompute() only in its second half.
  virtual void backward_input(const LayerRun& run, Tensor dx, Tensor dy) const = 0;
  // Compute the gradients of the parameters: of those that need x, and of those that need dy, of
  // which own_dy has this rank's rows. Called after backward_input(), perhaps much later.
  virtual void backward_weight(const LayerRun& run, Tensor x) const = 0;
  virtual void backward_output_weight(const LayerRun& run, Tensor dy, Tensor own_dy) const = 0;

  // The matmul that alone reads x, and the one that alone reads dy: who writes x or dy finds the
  // maxima of their fp8 operands. Null if there is no such matmul.
  virtual Linear* reader_of_x() { return nullptr; }
  virtual Linear* reader_of_dy() { return nullptr; }
};

}  // namespace kintsugi
