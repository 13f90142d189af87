#pragma once

#include "backend/backend.h"
#include "backend/operation_trace.h"

namespace kintsugi {

// The device of the `sim` world: hands out addresses that nobody may touch, computes nothing, and
// writes down what it was asked for.
class SimBackend final : public Backend {
 public:
  // Both outlive it. `classifier`: as the device that is planned for answers classifier_elements().
  explicit SimBackend(OperationTrace& trace, std::int64_t classifier = std::int64_t{1} << 28)
      : trace_(&trace), classifier_(classifier) {}

  void* allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  void release(void*, std::size_t) noexcept override {}
  Allocator& host_memory() override { return host_memory_; }
  std::string description() const override { return "sim: counts, computes nothing"; }
  Peak peak_flops(DType) override { return {0, "the sim world has no speed of its own"}; }
  std::size_t available_bytes() const override { return std::size_t{1} << 62; }
  std::size_t own_bytes() const override { return 0; }
  std::int64_t classifier_elements() const override { return classifier_; }

  std::size_t available_host_bytes() const override { return std::size_t{1} << 62; }
  Transfer to_device(Tensor, Tensor) override { return {}; }
  Transfer to_host(Tensor, Tensor) override { return {}; }
  void wait(Transfer) override {}
  void finish(Transfer) override {}

  void upload(Tensor destination, const void* source) override;
  void download(void* destination, Tensor source) override;
  void copy(Tensor destination, Tensor source) override;
  void fill(Tensor x, double value) override;
  void synchronize() override {}

  void matmul(Tensor c, Tensor a, Tensor b, const MatmulOptions& options) override;
  void bias_backward(Tensor dbias, Tensor dy) override;
  void rms_norm_forward(Tensor y, Tensor rstd, Tensor x, Tensor weight, double eps) override;
  void rms_norm_backward(Tensor dx, Tensor dweight, Tensor dy, Tensor x, Tensor weight, Tensor rstd,
                         Tensor residual_gradient) override;
  void layer_norm_forward(Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor weight, Tensor bias,
                          double eps) override;
  void layer_norm_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dy, Tensor x,
                           Tensor weight, Tensor mean, Tensor rstd,
                           Tensor residual_gradient) override;
  void attention_forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v,
                         const AttentionOptions& options) override;
  void attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse,
                          Tensor q, Tensor k, Tensor v, const AttentionOptions& options) override;
  void attention_merge(Tensor out, Tensor lse, Tensor part_out, Tensor part_lse) override;
  void rope(Tensor x, Tensor table, Tensor positions, bool inverse) override;
  void swiglu_forward(Tensor out, Tensor gate_up) override;
  void swiglu_backward(Tensor dgate_up, Tensor dout, Tensor gate_up) override;
  void gelu_forward(Tensor out, Tensor x) override;
  void gelu_backward(Tensor dx, Tensor dout, Tensor x) override;
  void dropout(Tensor y, Tensor x, const DropoutOptions& options, Tensor residual) override;
  void add(Tensor y, Tensor x) override;
  void embedding_forward(Tensor out, Tensor ids, Tensor table, bool accumulate,
                         std::int64_t first_row) override;
  void embedding_backward(Tensor dtable, Tensor ids, Tensor dout, std::int64_t first_row) override;
  void cross_entropy(Tensor losses, Tensor logits, Tensor targets, double gradient_scale) override;
  void cross_entropy_partial(Tensor partial, Tensor logits, Tensor targets,
                             std::int64_t first_column) override;
  void cross_entropy_merged(Tensor losses, Tensor logits, Tensor targets, Tensor partials,
                            std::int64_t first_column, double gradient_scale) override;
  void sum(Tensor out, Tensor x) override;
  void squared_norm(Tensor out, Tensor x) override;
  void clip_scale(Tensor scale, Tensor squared_norm, double clip, double unscale) override;
  void adamw(Tensor weight, Tensor master, Tensor moment1, Tensor moment2, Tensor gradient,
             Tensor gradient_scale, const AdamWOptions& options) override;

 private:
  void moved(const char* name, std::initializer_list<Tensor> tensors, double extra = 0);
  void attention(TracedOperation::Kind kind, const Tensor& q, const Tensor& k, double products,
                 double bytes, const AttentionOptions& options);

  OperationTrace* trace_;
  std::int64_t classifier_;
  PlanningAllocator memory_, host_memory_;
};

}  // namespace kintsugi
