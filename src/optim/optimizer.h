#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "model/parameter_set.h"

namespace kintsugi {

struct AdamWSettings {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;         // on matrices only
  double clip = 1.0;                 // global gradient norm; 0: none
  DType moments = DType::F32;        // bf16 halves the optimizer's memory; fp64 runs keep fp64
  bool stochastic_rounding = false;  // of bf16 moments
  std::uint64_t seed = 0;            // of that rounding
};

// AdamW over the flat buffers: fp32 master weights and moments beside 16-bit weights, in place for
// fp32 and fp64.
class Optimizer {
 public:
  Optimizer(Backend& backend, Arena& arena, const ParameterStore& store,
            const AdamWSettings& settings);

  void zero_state();  // moments; the master copy is written with the weights
  // All of them, once; and at the start of a step those that its first micro-batch adds to.
  void zero_all_gradients();
  void zero_added_gradients();
  // Clips and applies the gradients, which were scaled by 1 / unscale. `step` counts from 1. If the
  // gradient norm is not finite, nothing changes.
  void step(std::int64_t step, double lr, double unscale);
  // The squared norm of the gradients before `unscale`: (1), on the device.
  Tensor squared_norm() const { return squared_norm_; }

  Tensor master() const { return master_; }  // the weights themselves when they need no copy
  bool has_master() const { return master_.data() != store_->weights().data(); }
  Tensor moment1() const { return moment1_; }
  Tensor moment2() const { return moment2_; }

 private:
  Backend* backend_;
  const ParameterStore* store_;
  AdamWSettings settings_;
  Tensor master_;             // (buffer_elements), accumulator precision
  Tensor moment1_, moment2_;  // (buffer_elements), accumulator precision or bf16
  std::vector<std::pair<std::int64_t, std::int64_t>> added_;  // what zero_added_gradients clears
  Tensor squared_norm_, scale_;                               // (1)
};

}  // namespace kintsugi
