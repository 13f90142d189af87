#include "backend/checks/checks.h"

namespace kintsugi {

void Checks::number(const Tensor& x) const {
  if (!is_float(x.dtype())) wrong(x, "a floating-point number");
}

void Checks::accumulator(const Tensor& x) const {
  if (x.dtype() != accumulator_of(x.dtype())) wrong(x, "fp32 or fp64");
}

void Checks::ranked(const Tensor& x, int least, int most) const {
  number(x);
  if (x.rank() < least || x.rank() > most)
    wrong(x, fmt::format("of {} to {} dimensions", least, most));
}

void Checks::contiguous(const Tensor& x) const {
  if (!x.contiguous()) wrong(x, "contiguous");
}

void Checks::shaped(const Tensor& x, const Shape& shape, DType dtype) const {
  if (x.shape() != shape || x.dtype() != dtype)
    wrong(x, fmt::format("{} {}", to_string(dtype), to_string(shape)));
}

void Checks::dense(const Tensor& x, const Shape& shape, DType dtype) const {
  shaped(x, shape, dtype);
  contiguous(x);
}

void Checks::list(const Tensor& x, std::int64_t elements, DType dtype) const {
  if (x.elements() != elements || x.dtype() != dtype || !x.contiguous())
    wrong(x, fmt::format("{} with {} adjacent elements", to_string(dtype), elements));
}

void Checks::found(const Maxima& maxima, const Tensor& x) const {
  if (!maxima) return;
  const int rows = x.rank() - 2;
  const std::int64_t matrices = rows == 0 ? 1 : x.extent(0);
  list(maxima.rows, matrices * x.extent(rows), DType::I32);
  list(maxima.columns, matrices * x.extent(rows + 1), DType::I32);
}

void Checks::wrong(const Tensor& x, const std::string& expected) const {
  failure("{}: an operand is {} {}, not {}", operation_, to_string(x.dtype()), to_string(x.shape()),
          expected);
}

}  // namespace kintsugi
