#pragma once

#include <cstdint>

#include "backend/cuda/cudnn_plan.h"

namespace kintsugi::cudnn {

// One attention as cuDNN sees it. Strides are in the order (batch, head, position, element).
struct AttentionProblem {
  cudnnDataType_t dtype = CUDNN_DATA_BFLOAT16;
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t length = 0;  // queries and keys alike
  std::int64_t dim = 0;
  double scale = 1.0;
  bool alibi = false;
  bool documents = false;
  std::int64_t window = 0;           // 0: none
  std::int64_t document_stride = 0;  // from one sequence's document_start to the next
  bool deterministic = false;
  Extents q{}, k{}, v{}, out{};
  Extents dq{}, dk{}, dv{}, dout{};  // backward only

  auto operator<=>(const AttentionProblem&) const = default;
};

// The ids under which the plans' tensors are bound.
enum AttentionTensor : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,            // (batch, heads, length), fp32
  kSlopes,         // (heads), fp32
  kDocumentStart,  // (batch, length), int32
  kDout,
  kDq,
  kDk,
  kDv,
  kRowSum,        // (batch, heads, length), fp32: sum over the head of dout * out
  kDqSum,         // (batch, heads, length, dim), fp32: not in deterministic plans
  kQueryLengths,  // (batch), int32, every one `length`: only where needs_lengths()
  kKeyLengths,    // the same
};

Plan attention_forward_plan(const AttentionProblem& problem, const Target& target);
Plan attention_backward_plan(const AttentionProblem& problem, const Target& target);

// Up to 9.15.0 cuDNN's backward is wrong on keys that do not fill its tiles of 128 unless their
// number is also given as data, as if the batch were padded.
bool needs_lengths(const AttentionProblem& problem);

}  // namespace kintsugi::cudnn
