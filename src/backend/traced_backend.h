#pragma once

#include <memory>
#include <string>
#include <utility>

#include "backend/backend.h"
#include "core/trace.h"

namespace kintsugi {

// A backend whose operations are done when they return, with a span in the trace for each. Passes
// everything on.
class TracedBackend final : public Backend {
 public:
  TracedBackend(std::unique_ptr<Backend> inner, Trace& trace)
      : inner_(std::move(inner)), trace_(trace) {}

  void* allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  void release(void* address, std::size_t bytes) noexcept override {
    inner_->release(address, bytes);
  }
  std::string description() const override { return inner_->description(); }
  Peak peak_flops(DType dtype) override { return inner_->peak_flops(dtype); }
  std::size_t available_bytes() const override { return inner_->available_bytes(); }
  std::size_t own_bytes() const override { return inner_->own_bytes(); }
  std::int64_t classifier_elements() const override { return inner_->classifier_elements(); }

  void upload(Tensor destination, const void* source) override;
  void download(void* destination, Tensor source) override;
  void copy(Tensor destination, Tensor source) override;
  void fill(Tensor x, double value) override;
  void synchronize() override { inner_->synchronize(); }
  void replay(std::uint64_t key, const std::function<void()>& calls) override {
    inner_->replay(key, calls);
  }
  Allocator& host_memory() override { return inner_->host_memory(); }
  std::size_t available_host_bytes() const override { return inner_->available_host_bytes(); }
  Transfer to_device(Tensor device, Tensor host) override;
  Transfer to_host(Tensor host, Tensor device) override;
  void wait(Transfer transfer) override { inner_->wait(transfer); }
  void finish(Transfer transfer) override { inner_->finish(transfer); }
  LinkTotals link_totals() override { return inner_->link_totals(); }
  bool traces() const override { return trace_.on(); }
  void begin_phase(std::string name) override;
  void end_phase() noexcept override;

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
  std::unique_ptr<Backend> inner_;
  Trace& trace_;
  TraceSpan phase_;
};

}  // namespace kintsugi
