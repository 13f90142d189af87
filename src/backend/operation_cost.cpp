#include "backend/operation_cost.h"

#include <utility>

namespace kintsugi {
namespace {

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
