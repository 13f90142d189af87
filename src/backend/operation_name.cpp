#include "backend/operation_name.h"

#include <fmt/core.h>

namespace kintsugi {

std::string operation_name(const char* operation, const Tensor& c, const Tensor& a, const Tensor&,
                           const MatmulOptions& o) {
  const int rows = c.rank() - 2;  // 1 for a batch
  return fmt::format(
      "{} {}{}x{}x{}{}{}{}{}", operation, rows == 1 ? fmt::format("{} of ", c.extent(0)) : "",
      c.extent(rows), c.extent(rows + 1), a.extent(rows + (o.transpose_a ? 0 : 1)),
      o.transpose_a ? " a^T" : "", o.transpose_b ? " b^T" : "", o.bias ? " + bias" : "",
      o.accumulate   ? " accumulate"
      : o.residual   ? " + residual"
      : o.gelu       ? " gelu"
      : o.gelu_input ? " dgelu"
                     : "");
}

}  // namespace kintsugi
