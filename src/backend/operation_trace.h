#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/collective.h"
#include "tensor/tensor.h"

namespace kintsugi {

// One operation of a rank: on its device, or communication with other ranks. The `sim` backend
// records operations in order; the planner reads them.
struct TracedOperation {
  enum class Kind : std::uint8_t {
    Matmul,             // m x n x k
    AttentionForward,   // m = batch x heads, n queries, k keys
    AttentionBackward,  // the same sizes
    Memory,             // memory-bound: its cost is given by its bytes
    Collective,         // the start of a collective; `bytes` is the size of the full tensor
    Wait,               // for the collective with this ticket
  };
  Kind kind = Kind::Memory;
  DType dtype = DType::F32;
  const char* name = "";
  double flops = 0;  // a multiply-add is 2; attention counts only the pairs that the mask keeps
  double bytes = 0;  // read and written
  std::int64_t m = 0, n = 0, k = 0, head_dim = 0;
  std::int64_t groups = 1;  // matmuls of this shape in one operation, as those of experts
  bool uneven = false;      // m is the mean of the groups
  bool host_waits = false;  // the host continues when the device has done this
  // Collectives only:
  Collective collective = Collective::AllReduce;
  std::string group = {};
  std::int64_t ticket = 0;
};

struct OperationTrace {
  std::vector<TracedOperation> operations = {};
  std::int64_t tickets = 0;

  double flops() const;
  double bytes(TracedOperation::Kind kind) const;
};

inline double OperationTrace::flops() const {
  double sum = 0;
  for (const TracedOperation& operation : operations) sum += operation.flops;
  return sum;
}
inline double OperationTrace::bytes(TracedOperation::Kind kind) const {
  double sum = 0;
  for (const TracedOperation& operation : operations)
    if (operation.kind == kind) sum += operation.bytes;
  return sum;
}

}  // namespace kintsugi
