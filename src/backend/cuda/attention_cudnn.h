#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

// Attention through cuDNN: which calls it supports, their plans, and their execution.
namespace kintsugi::cuda {

struct CudnnCall {
  Tensor out, lse, q, k, v;
  Tensor dq, dk, dv, dout;  // empty in a forward call
  AttentionOptions options;
  bool deterministic;
};

struct CudnnPlan;
std::size_t scratch_bytes(const CudnnPlan& plan);
const std::string& description(const CudnnPlan& plan);

class CudnnAttention {
 public:
  CudnnAttention();
  ~CudnnAttention();

  // The plan of a call, built when its shapes are new. nullptr if cuDNN does not support the call;
  // last_reason() tells why.
  const CudnnPlan* forward_plan(const CudnnCall& call, cudaStream_t stream);
  const CudnnPlan* backward_plan(const CudnnCall& call, cudaStream_t stream);

  void run_forward(const CudnnPlan& plan, const CudnnCall& call, void* scratch,
                   cudaStream_t stream);
  void run_backward(const CudnnPlan& plan, const CudnnCall& call, void* scratch,
                    cudaStream_t stream);

  std::size_t own_bytes() const;
  const std::string& last_reason() const;
  const std::vector<std::string>& refusals() const;  // errors of cuDNN itself

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kintsugi::cuda
