#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/runtime.h"

// Attention by the fused kernels of the vendor's library (cuDNN, AOTriton): which calls it
// supports, their plans, and their execution.
namespace kintsugi::gpu {

struct AttentionCall {
  Tensor out, lse, q, k, v;
  Tensor dq, dk, dv, dout;  // empty in a forward call
  AttentionOptions options;
  bool deterministic;
};

struct AttentionPlan;
std::size_t scratch_bytes(const AttentionPlan& plan);
const std::string& description(const AttentionPlan& plan);

class FusedAttention {
 public:
  FusedAttention();
  ~FusedAttention();

  // The plan of a call, built when its shapes are new. nullptr if the library does not support the
  // call; last_reason() tells why.
  const AttentionPlan* forward_plan(const AttentionCall& call, Stream stream);
  const AttentionPlan* backward_plan(const AttentionCall& call, Stream stream);

  void run_forward(const AttentionPlan& plan, const AttentionCall& call, void* scratch,
                   Stream stream);
  void run_backward(const AttentionPlan& plan, const AttentionCall& call, void* scratch,
                    Stream stream);

  std::size_t own_bytes() const;
  const std::string& last_reason() const;
  const std::vector<std::string>& refusals() const;  // errors of the library itself

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// clear_empty_rows() for queries that are after all keys.
void clear_empty_block_rows(Tensor out, Tensor lse, Tensor document_start, std::int64_t keys,
                            Stream stream);

// to = factor * from, both contiguous fp32: for a library whose log-sum-exp has another base. They
// may be the same.
void scale_sums(Tensor to, Tensor from, double factor, Stream stream);

}  // namespace kintsugi::gpu
