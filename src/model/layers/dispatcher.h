#pragma once

#include <memory>

#include "model/layers/layer_run.h"

namespace kintsugi {

// Brings tokens to the data ranks that hold the experts they chose, and what these computed back.
// On each rank, the tokens of all ranks that it computes for are its visitors. If all experts are
// here, the visitors are the rank's own tokens.
class Dispatcher {
 public:
  virtual ~Dispatcher() = default;

  virtual void declare(Declaration& d) = 0;
  virtual std::int64_t most() const = 0;  // visitors per own token, at most

  // Brings the choices (tokens, k) of a micro-batch. What is recomputed keeps the first ones.
  virtual void bring_choices(const LayerRun& run, Tensor ids, Tensor weights) const = 0;
  virtual Tensor ids(const LayerRun& run, Tensor own) const = 0;  // (visitors, k)
  virtual Tensor weights(const LayerRun& run, Tensor own) const = 0;

  // Starts to bring the rows of own (tokens, hidden), into a buffer that the next call overwrites,
  // and waits for them.
  virtual Communicator::Work start_bringing(const LayerRun& run, Tensor own) const = 0;
  virtual Tensor brought(const LayerRun& run, Communicator::Work work, Tensor own) const = 0;
  Tensor bring(const LayerRun& run, Tensor own) const {
    return brought(run, start_bringing(run, own), own);
  }
  // y (tokens, hidden) = [residual +] the sums over all ranks of the rows of x at the positions
  // (visitors, k) of a visitor. Rows travel between the two calls.
  virtual Communicator::Work start_combining(const LayerRun& run, Tensor x,
                                             Tensor positions) const = 0;
  virtual void combine(const LayerRun& run, Communicator::Work work, Tensor y, Tensor x,
                       Tensor positions, Tensor residual) const = 0;
  // The gradients of the weights: all are 0, then those of the visitors, then their sum in own.
  virtual Tensor clear_dweights(const LayerRun& run, Tensor own) const = 0;
  virtual void sum_dweights(const LayerRun& run, Tensor own) const = 0;
};

// What a dispatcher needs to know of a layer.
struct DispatchedLayer {
  std::int64_t experts = 0;  // of all ranks
  std::int64_t chosen = 0;   // by a token
  std::int64_t hidden = 0;
  bool drops = false;  // some choices are not computed
};
std::unique_ptr<Dispatcher> make_dispatcher(const LayerRanks& ranks, const DispatchedLayer& layer);

}  // namespace kintsugi
