#include "backend/operation_name.h"

#include <fmt/core.h>

namespace kintsugi {

std::string matmul_name(const Tensor& c, const Tensor& a, const MatmulOptions& o) {
  return fmt::format("matmul {}x{}x{}{}{}{}{}", c.extent(0), c.extent(1),
                     a.extent(o.transpose_a ? 0 : 1), o.transpose_a ? " a^T" : "",
                     o.transpose_b ? " b^T" : "", o.bias ? " + bias" : "",
                     o.accumulate   ? " accumulate"
                     : o.residual   ? " + residual"
                     : o.gelu       ? " gelu"
                     : o.gelu_input ? " dgelu"
                                    : "");
}

}  // namespace kintsugi
