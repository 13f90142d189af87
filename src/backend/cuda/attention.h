#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace kintsugi::cuda {

class Workspace;

// Auto takes cuDNN's fused kernels where they exist and our own elsewhere; the others insist, for
// tests.
enum class AttentionChoice { Auto, Cudnn, Portable };

// The attention of the CUDA world. The first call with new shapes builds a plan and may take device
// memory; later ones only launch kernels, so that they can be captured in a graph.
class CudaAttention {
 public:
  CudaAttention();  // with scratch memory of its own
  explicit CudaAttention(Workspace& scratch);
  ~CudaAttention();

  void forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v,
               const AttentionOptions& options, cudaStream_t stream);
  void backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse, Tensor q,
                Tensor k, Tensor v, const AttentionOptions& options, cudaStream_t stream);

  void set_choice(AttentionChoice choice) { choice_ = choice; }
  // The same gradients bit for bit in every run; cuDNN's fastest backward adds up dq in the order
  // of the moment.
  void set_deterministic(bool deterministic) { deterministic_ = deterministic; }

  std::size_t own_bytes() const;
  // What ran last: "portable" or cuDNN's engine.
  const std::string& last_kernel() const { return last_kernel_; }
  // Why cuDNN was passed over although it might have served: one line each, in the order they
  // happened.
  const std::vector<std::string>& refusals() const;

 private:
  void warn_if_slow(const Tensor& q);
  bool warned_ = false;
  struct Parts;
  std::unique_ptr<Parts> parts_;
  AttentionChoice choice_ = AttentionChoice::Auto;
  bool deterministic_ = false;
  std::string last_kernel_;
};

}  // namespace kintsugi::cuda
