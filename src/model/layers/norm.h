#pragma once

#include "model/layers/layer_run.h"

namespace kintsugi {

// What the backward of a norm needs besides its input: one value per row.
struct NormStatistics {
  Tensor mean;  // LayerNorm only
  Tensor rstd;

  NormStatistics first(std::int64_t rows) const {
    return {mean ? mean.rows(0, rows) : mean, rstd.rows(0, rows)};
  }
};

// RMSNorm or LayerNorm over the last dimension.
class Norm {
 public:
  explicit Norm(const NormSpec& spec) : spec_(spec) {}

  // `partial`: each tensor rank normalizes its own heads and has a partial gradient of the weights.
  void declare(Declaration& d, std::int64_t width, bool partial = false);
  // RMSNorm of rows whose columns are sharded over the tensor ranks; `copies` neighbouring ranks
  // hold the same columns.
  void declare_sharded(Declaration& d, std::int64_t width, int copies);
  // Declares one value per row of the residual stream for each statistic.
  void declare_statistics(Declaration& d);
  NormStatistics statistics(const LayerRun& run) const {
    return {has_mean() ? run[mean_] : Tensor(), run[rstd_]};
  }
  bool has_mean() const { return spec_.kind == NormKind::Layer; }

  // Finds the maxima of y, or of dx, if they are wanted.
  void forward(const LayerRun& run, Tensor y, const NormStatistics& statistics, Tensor x,
               const Maxima& maxima = {}) const;
  // Computes dx = gradient of x [+ residual_gradient] and adds to the parameters' gradients.
  void backward(const LayerRun& run, Tensor dx, Tensor dy, Tensor x,
                const NormStatistics& statistics, Tensor residual_gradient = {},
                const Maxima& maxima = {}) const;
  // The same for sharded columns; sums (rows) is scratch.
  void forward_sharded(const LayerRun& run, Tensor y, Tensor rstd, Tensor x, Tensor sums) const;
  void backward_sharded(const LayerRun& run, Tensor dx, Tensor dy, Tensor x, Tensor rstd,
                        Tensor sums) const;

 private:
  NormSpec spec_;
  int weight_ = -1;
  int bias_ = -1;
  std::int64_t width_ = 0;  // columns on all ranks, including copies
  Saved mean_, rstd_;
};

}  // namespace kintsugi
