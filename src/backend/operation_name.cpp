#include "backend/operation_name.h"

#include <fmt/core.h>

namespace kintsugi {
namespace {

std::string attention_name(const char* operation, const Tensor& q, const Tensor& k,
                           const AttentionOptions& options) {
  const std::int64_t queries = q.extent(1), keys = k.extent(1);
  return fmt::format("{} {}x{}x{}x{}{}{}{}", operation, q.extent(0), q.extent(2), queries,
                     q.extent(3), keys == queries ? "" : fmt::format(" to {} keys", keys),
                     options.window > 0 ? fmt::format(" window {}", options.window) : " causal",
                     options.alibi_slopes ? " alibi" : "");
}

}  // namespace

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

std::string operation_name(const char* operation, const Tensor& c, const Quantized& a,
                           const Quantized& b, const MatmulOptions& o) {
  return operation_name(operation, c, a.values, b.values, o);
}

std::string operation_name(const char* operation, const Tensor&, const Tensor&, const Tensor& q,
                           const Tensor& k, const Tensor&, const AttentionOptions& options) {
  return attention_name(operation, q, k, options);
}

std::string operation_name(const char* operation, const Tensor&, const Tensor&, const Tensor&,
                           const Tensor&, const Tensor&, const Tensor&, const Tensor& q,
                           const Tensor& k, const Tensor&, const AttentionOptions& options) {
  return attention_name(operation, q, k, options);
}

}  // namespace kintsugi
