#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/runtime.h"

namespace kintsugi::gpu {

class Workspace;

// Auto uses the library's fused kernels where they exist and our own ("portable") elsewhere. The
// others force one of the two, for tests. Scalar: our own, without the matrix units.
enum class AttentionChoice { Auto, Fused, Portable, Scalar };

// Attention of the GPU backend. The first call with new shapes builds a plan and may allocate
// device memory; later calls only launch kernels, so that they can be captured in a graph.
class Attention {
 public:
  Attention();  // with its own scratch memory
  explicit Attention(Workspace& scratch);
  ~Attention();

  void forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v,
               const AttentionOptions& options, Stream stream);
  void backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse, Tensor q,
                Tensor k, Tensor v, const AttentionOptions& options, Stream stream);

  void set_choice(AttentionChoice choice) { choice_ = choice; }
  // Makes gradients bit-identical in every run: the fastest backward of cuDNN sums dq in an order
  // that depends on timing.
  void set_deterministic(bool deterministic) { deterministic_ = deterministic; }

  std::size_t own_bytes() const;
  // The kernel of the last call: "portable" or the library's engine.
  const std::string& last_kernel() const { return last_kernel_; }
  // Why the library was not used for supported shapes: one line per case, in the order they
  // occurred.
  const std::vector<std::string>& refusals() const;

 private:
  bool own_kernels() const {
    return choice_ == AttentionChoice::Portable || choice_ == AttentionChoice::Scalar;
  }
  void warn_if_slow(const Tensor& q);
  bool warned_ = false;
  struct State;
  std::unique_ptr<State> state_;
  AttentionChoice choice_ = AttentionChoice::Auto;
  bool deterministic_ = false;
  std::string last_kernel_;
};

}  // namespace kintsugi::gpu
