#include "backend/operation_cost.h"

#include <fmt/core.h>

#include <utility>

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

WorkKind work_of(TracedOperation::Kind kind) {
  switch (kind) {
    case TracedOperation::Kind::Matmul:
      return WorkKind::Matmul;
    case TracedOperation::Kind::AttentionForward:
    case TracedOperation::Kind::AttentionBackward:
      return WorkKind::Attention;
    case TracedOperation::Kind::Memory:
      return WorkKind::Memory;
    case TracedOperation::Kind::Collective:
    case TracedOperation::Kind::Wait:
      break;
  }
  return WorkKind::Unknown;
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

TraceSpan operation_span(std::string name, const OperationCost& cost) {
  return {.kind = SpanKind::Operation,
          .lane = "compute",
          .name = std::move(name),
          .bytes = static_cast<std::int64_t>(cost.bytes),
          .work = cost.work,
          .flops = cost.flops,
          .dtype = std::string(to_string(cost.dtype))};
}

// An operation may count as several, as retention does: its work is that of its matmuls.
OperationCost CostMeter::take() {
  OperationCost cost;
  for (const TracedOperation& one : counted_.operations) {
    if (cost.work == WorkKind::Unknown || one.kind == TracedOperation::Kind::Matmul) {
      cost.work = work_of(one.kind);
      cost.dtype = one.dtype;
    }
    cost.flops += one.flops;
    cost.bytes += one.bytes;
  }
  counted_.operations.clear();
  return cost;
}

}  // namespace kintsugi
