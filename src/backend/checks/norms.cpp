#include "backend/checks/checks.h"

namespace kintsugi {

// y is the result or the gradient of x.
void Checks::norm(const Tensor& y, const Tensor& x, const Tensor& rstd) const {
  ranked(x, 2, 3);
  like(x, y);
  statistics(x, rstd);
}

void Checks::weight(const Tensor& x, const Tensor& weight) const {
  list(weight, x.extent(x.rank() - 1), x.dtype());
}

void Checks::weight_gradient(const Tensor& x, const Tensor& gradient) const {
  if (gradient) list(gradient, x.extent(x.rank() - 1), accumulator_of(x.dtype()));
}

void Checks::rms_norm_forward(Tensor y, Tensor rstd, Tensor x, Tensor weight, double,
                              Maxima maxima) const {
  norm(y, x, rstd);
  this->weight(x, weight);
  found(maxima, y);
}

void Checks::rms_norm_backward(Tensor dx, Tensor dweight, Tensor dy, Tensor x, Tensor weight,
                               Tensor rstd, Tensor residual_gradient, Maxima maxima) const {
  norm(dx, x, rstd);
  like(x, dy);
  if (residual_gradient) like(x, residual_gradient);
  this->weight(x, weight);
  weight_gradient(x, dweight);
  found(maxima, dx);
}

void Checks::rms_norm_partial(Tensor sums, Tensor x) const { norm(x, x, sums); }

void Checks::rms_norm_merged(Tensor y, Tensor rstd, Tensor x, Tensor weight, Tensor sums,
                             std::int64_t width, double) const {
  norm(y, x, rstd);
  statistics(x, sums);
  this->weight(x, weight);
  KINTSUGI_CHECK(width >= weight.elements(), "{}: {} columns of rows of {}", operation_,
                 weight.elements(), width);
}

void Checks::rms_norm_backward_partial(Tensor sums, Tensor dy, Tensor x, Tensor weight) const {
  norm(dy, x, sums);
  this->weight(x, weight);
}

void Checks::rms_norm_backward_merged(Tensor dx, Tensor dweight, Tensor dy, Tensor x, Tensor weight,
                                      Tensor rstd, Tensor sums, std::int64_t width) const {
  rms_norm_merged(dx, rstd, x, weight, sums, width, 0);
  like(x, dy);
  weight_gradient(x, dweight);
}

void Checks::layer_norm_forward(Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor weight,
                                Tensor bias, double eps, Maxima maxima) const {
  rms_norm_forward(y, rstd, x, weight, eps, maxima);
  statistics(x, mean);
  this->weight(x, bias);
}

void Checks::layer_norm_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dy, Tensor x,
                                 Tensor weight, Tensor mean, Tensor rstd, Tensor residual_gradient,
                                 Maxima maxima) const {
  rms_norm_backward(dx, dweight, dy, x, weight, rstd, residual_gradient, maxima);
  statistics(x, mean);
  weight_gradient(x, dbias);
}

void Checks::gated_norm_forward(Tensor y, Tensor rstd, Tensor x, Tensor gate, double) const {
  norm(y, x, rstd);
  like(x, gate);
}

void Checks::gated_norm_backward(Tensor dx, Tensor dgate, Tensor dy, Tensor x, Tensor gate,
                                 Tensor rstd) const {
  norm(dx, x, rstd);
  like(x, gate, dgate, dy);
}

}  // namespace kintsugi
