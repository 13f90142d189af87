#pragma once

#include "model/layers/adapters.h"
#include "model/layers/fp8_matmuls.h"

namespace kintsugi {

// y = x W^T + b, with W stored as in the Hugging Face file. Several packed matrices (q, k, v; gate,
// up) act as one. Some of them may have low-rank adapters. The matmuls may be in fp8.
class Linear {
 public:
  explicit Linear(const LinearSpec& spec) : spec_(spec), adapters_(spec.adapters), fp8_(spec.fp8) {}

  // Declares the matrices sharded by outputs, each with its number of copies, or sharded by inputs.
  // kOnEveryRank: all of the matrix is on every rank, which computes a partial gradient.
  static constexpr int kOnEveryRank = 0;
  void declare_outputs(Declaration& d, ParameterGroup group, const std::vector<int>& copies);
  void declare_inputs(Declaration& d, ParameterGroup group);

  std::int64_t outputs() const { return spec_.in_out ? shape_[1] : shape_[0]; }  // on this rank

  // x may be overwritten after the forward: backward_weight() does not read it, unless something
  // was recomputed.
  bool keeps_input() const { return fp8_.keeps_input(); }
  // Who writes x or dy finds its maxima (Fp8Matmuls). Empty if this run does not read them.
  Fp8Matmuls& fp8() { return fp8_; }
  Maxima input_maxima(const LayerRun& run) const {
    return in_fp8(run) ? fp8_.input_maxima(run) : Maxima();
  }
  Maxima gradient_maxima(const LayerRun& run) const {
    return in_fp8(run) ? fp8_.gradient_maxima(run) : Maxima();
  }

  // W on this rank, in the run's precision, without adapters.
  Tensor weight(const LayerRun& run) const {
    return fp8_.weight().on() ? fp8_.weight().rounded(run) : run.store().weight(weight_, shape_);
  }

  // If the inputs are sharded: computes this rank's partial sum. Only one rank adds the bias.
  void forward(const LayerRun& run, Tensor y, Tensor x, Tensor residual = {}) const;
  // GELU is part of these matmuls, or an operation after them, which finds the maxima of its
  // result.
  bool fuses_gelu() const { return !adapters_.any() && !fp8_.weight().on(); }
  void forward_gelu(const LayerRun& run, Tensor activated, Tensor y, Tensor x,
                    const Maxima& maxima) const;
  void forward_swiglu(const LayerRun& run, Tensor activated, Tensor y, Tensor x) const;
  // backward_weight() runs after backward_input(), perhaps much later.
  void backward_input(const LayerRun& run, Tensor dx, Tensor dy) const;
  // For x = gelu(before): computes the gradient of `before`.
  void backward_input_gelu(const LayerRun& run, Tensor dbefore, Tensor dy, Tensor before,
                           const Maxima& maxima) const;
  // The gradient of the bias is computed from `bias_dy`; empty: from dy.
  void backward_weight(const LayerRun& run, Tensor dy, Tensor x, Tensor bias_dy = {}) const;

 private:
  void declare(Declaration& d, ParameterGroup group, Declaration::Shard::Along along,
               const std::vector<int>& copies);
  MatmulOptions forward_options(const LayerRun& run) const;
  bool in_fp8(const LayerRun& run) const { return fp8_.weight().is_used(run); }
  void multiply(const LayerRun& run, Tensor y, Tensor x, MatmulOptions options) const;
  void multiply_back(const LayerRun& run, Tensor dx, Tensor dy, Tensor gelu_input = {}) const;
  Tensor bias(const LayerRun& run) const {
    return bias_ >= 0 ? run.store().weight(bias_, {outputs()}) : Tensor();
  }

  LinearSpec spec_;
  Adapters adapters_;
  Fp8Matmuls fp8_;
  int weight_ = -1;
  int bias_ = -1;
  bool by_inputs_ = false;  // sharded by inputs
  Shape shape_;             // of the packed matrices, on this rank
};

}  // namespace kintsugi
