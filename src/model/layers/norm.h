#pragma once

#include <string>

#include "backend/backend.h"
#include "model/parameter_set.h"

namespace kintsugi {

// What the backward of a norm needs beside its input: one value per row.
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
  Norm(Backend& backend, const ParameterStore& store, NormKind kind, double eps,
       const std::string& weight, const std::string& bias);

  void forward(Tensor y, const NormStatistics& statistics, Tensor x) const;
  // dx = [residual_gradient +] d norm; also adds to the parameters' gradients.
  void backward(Tensor dx, Tensor dy, Tensor x, const NormStatistics& statistics,
                Tensor residual_gradient = {}) const;

 private:
  Backend* backend_;
  const ParameterStore* store_;
  NormKind kind_;
  double eps_;
  int weight_ = -1;
  int bias_ = -1;
};

}  // namespace kintsugi
