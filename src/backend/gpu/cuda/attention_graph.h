#pragma once

#include <cstdint>

#include "backend/gpu/cuda/cudnn_plan.h"

namespace kintsugi::cudnn {

// An attention call in cuDNN's terms. Strides are in the order (batch, head, position, element).
struct AttentionProblem {
  cudnnDataType_t dtype = CUDNN_DATA_BFLOAT16;
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t dim = 0;
  double scale = 1.0;
  bool causal = true;  // with as many queries as keys; false: every query sees every key
  bool alibi = false;
  bool moved_keys = false;  // with ALiBi: the first key is not at position 0
  bool documents = false;
  std::int64_t window = 0;           // 0: none
  std::int64_t document_stride = 0;  // stride of document_start between sequences
  bool deterministic = false;
  Extents q{}, k{}, v{}, out{};
  Extents dq{}, dk{}, dv{}, dout{};  // backward only

  auto operator<=>(const AttentionProblem&) const = default;
};

// The ids of the plans' tensors.
enum AttentionTensor : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,            // (batch, heads, queries), fp32
  kSlopes,         // (heads), fp32
  kDocumentStart,  // (batch, queries), int32
  kDout,
  kDq,
  kDk,
  kDv,
  kRowSum,        // (batch, heads, queries), fp32: sum over dim of dout * out
  kDqSum,         // (batch, heads, queries, dim), fp32: not in deterministic plans
  kQueryLengths,  // (batch), int32, each equal to `queries`: only if needs_lengths()
  kKeyLengths,    // (batch), int32, each equal to `keys`
  kFirstKey,      // the position of the first key, fp32, in host memory: only if moved_keys
};

Plan attention_forward_plan(const AttentionProblem& problem, const Target& target);
Plan attention_backward_plan(const AttentionProblem& problem, const Target& target);

// Up to cuDNN 9.15.0 the backward is wrong if the number of keys is not a multiple of its tiles of
// 128, unless the number is also passed as data, as for a padded batch.
bool needs_lengths(const AttentionProblem& problem);

}  // namespace kintsugi::cudnn
