#include "backend/checks/checks.h"

namespace kintsugi {

void Checks::copy(Tensor destination, Tensor source) const {
  shaped(destination, source.shape(), destination.dtype());
  if (destination.dtype() == source.dtype()) return;
  number(source);
  number(destination);
}

void Checks::add(Tensor y, Tensor x) const {
  number(x);
  contiguous(x);
  list(y, x.elements(), y.dtype() == x.dtype() ? x.dtype() : accumulator_of(x.dtype()));
}

void Checks::swiglu_forward(Tensor out, Tensor gate_up, Maxima maxima) const {
  matrix(out);
  shaped(gate_up, {out.extent(0), 2 * out.extent(1)}, out.dtype());
  found(maxima, out);
}

void Checks::swiglu_backward(Tensor dgate_up, Tensor dout, Tensor gate_up, Maxima maxima) const {
  swiglu_forward(dout, gate_up, {});
  like(gate_up, dgate_up);
  found(maxima, dgate_up);
}

void Checks::gelu_forward(Tensor out, Tensor x, Maxima maxima) const {
  number(x);
  contiguous(x);
  list(out, x.elements(), x.dtype());
  found(maxima, out);
}

void Checks::gelu_backward(Tensor dx, Tensor dout, Tensor x, Maxima maxima) const {
  gelu_forward(dout, x, {});
  gelu_forward(dx, x, maxima);
}

void Checks::dropout(Tensor y, Tensor x, const DropoutOptions& o, Tensor residual) const {
  matrix(x);
  like(x, y);
  if (residual) like(x, residual);
  if (o.rows) list(o.rows, x.extent(0), DType::I32);
  KINTSUGI_CHECK(o.probability >= 0 && o.probability < 1, "dropout probability {}", o.probability);
  KINTSUGI_CHECK(o.width == 0 || o.first_column + x.extent(1) <= o.width,
                 "dropout of columns {} to {} of {}", o.first_column, o.first_column + x.extent(1),
                 o.width);
}

void Checks::draw(Tensor x, const DrawOptions&) const { matrix(x); }

}  // namespace kintsugi
