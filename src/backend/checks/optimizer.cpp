#include "backend/checks/checks.h"

namespace kintsugi {

// Moments may also be stored in bf16, if the updates are computed in fp32.
void Checks::moment(const Tensor& moment, std::int64_t elements, DType dtype) const {
  const bool is_short = dtype == DType::F32 && moment.dtype() == DType::BF16;
  list(moment, elements, is_short ? DType::BF16 : dtype);
}

void Checks::updated(const Tensor& weight, const Tensor& master,
                     const Tensor& gradient_scale) const {
  number(weight);
  contiguous(weight);
  list(master, weight.elements(), accumulator_of(weight.dtype()));
  list(gradient_scale, 1, master.dtype());
}

void Checks::sum(Tensor out, Tensor x) const {
  number(x);
  contiguous(x);
  list(out, 1, accumulator_of(x.dtype()));
}
void Checks::squared_norm(Tensor out, Tensor x) const { sum(out, x); }

void Checks::clip_scale(Tensor scale, Tensor squared_norm, const ClipOptions& options) const {
  list(scale, 1, accumulator_of(scale.dtype()));
  list(squared_norm, 1, scale.dtype());
  if (options.loss) list(options.loss, 1, scale.dtype());
}

void Checks::adamw(Tensor weight, Tensor master, Tensor moment1, Tensor moment2, Tensor gradient,
                   Tensor gradient_scale, const AdamWOptions& options) const {
  updated(weight, master, gradient_scale);
  moment(moment1, weight.elements(), master.dtype());
  list(moment2, weight.elements(), moment1.dtype());
  list(gradient, weight.elements(), master.dtype());
  KINTSUGI_CHECK(options.step > 0, "adamw: step {}; they count from 1", options.step);
}

void Checks::momentum(Tensor direction, Tensor moment, Tensor gradient, Tensor gradient_scale,
                      const MomentumOptions&) const {
  updated(direction ? direction : gradient, gradient, gradient_scale);
  this->moment(moment, gradient.elements(), gradient.dtype());
}

void Checks::divide_by_norms(Tensor x, Tensor squared_norms, double) const {
  ranked(x, 3, 3);
  contiguous(x);
  list(squared_norms, x.extent(0), accumulator_of(x.dtype()));
}

void Checks::descend(Tensor weight, Tensor master, Tensor direction, Tensor gradient_scale, double,
                     double) const {
  updated(weight, master, gradient_scale);
  number(direction);
  list(direction, weight.elements(), direction.dtype());
}

void Checks::moving_average(Tensor average, Tensor x, double, Tensor scale) const {
  accumulator(average);
  contiguous(average);
  list(x, average.elements(), average.dtype());
  list(scale, 1, average.dtype());
}

}  // namespace kintsugi
