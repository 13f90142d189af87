#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace kintsugi::cuda {

class Workspace;

// Auto uses cuDNN's fused kernels where they exist and our own ("portable") elsewhere. The others
// force one of the two, for tests.
enum class AttentionChoice { Auto, Cudnn, Portable };

// Attention of the CUDA backend. The first call with new shapes builds a plan and may allocate
// device memory; later calls only launch kernels, so that they can be captured in a graph.
class CudaAttention {
 public:
  CudaAttention();  // with its own scratch memory
  explicit CudaAttention(Workspace& scratch);
  ~CudaAttention();

  void forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v,
               const AttentionOptions& options, cudaStream_t stream);
  void backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse, Tensor q,
                Tensor k, Tensor v, const AttentionOptions& options, cudaStream_t stream);

  void set_choice(AttentionChoice choice) { choice_ = choice; }
  // Makes gradients bit-identical in every run: cuDNN's fastest backward sums dq in an order that
  // depends on timing.
  void set_deterministic(bool deterministic) { deterministic_ = deterministic; }

  std::size_t own_bytes() const;
  // The kernel of the last call: "portable" or cuDNN's engine.
  const std::string& last_kernel() const { return last_kernel_; }
  // Why cuDNN was not used for supported shapes: one line per case, in the order they occurred.
  const std::vector<std::string>& refusals() const;

 private:
  void warn_if_slow(const Tensor& q);
  bool warned_ = false;
  struct State;
  std::unique_ptr<State> state_;
  AttentionChoice choice_ = AttentionChoice::Auto;
  bool deterministic_ = false;
  std::string last_kernel_;
};

}  // namespace kintsugi::cuda
