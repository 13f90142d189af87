#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/thread_pool.h"

namespace kintsugi {

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(int threads);

  void* allocate(std::size_t bytes) override;
  void release(void* address, std::size_t bytes) noexcept override;
  std::string description() const override;
  Peak peak_flops(DType dtype) override;
  std::size_t available_bytes() const override;
  std::size_t own_bytes() const override;

  void upload(Tensor destination, const void* source) override;
  void download(void* destination, Tensor source) override;
  void copy(Tensor destination, Tensor source) override;
  void fill(Tensor x, double value) override;
  void synchronize() override {}

  std::size_t available_host_bytes() const override { return available_bytes(); }
  Transfer to_device(Tensor device, Tensor host) override;
  Transfer to_host(Tensor host, Tensor device) override;
  void wait(Transfer) override {}
  void finish(Transfer) override {}

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
  // Scratch of every thread, grown to the largest request seen: nothing is allocated once every
  // shape has been met. All threads grow at once, since any of them may run any task.
  template <class R>
  void reserve_scratch(std::int64_t elements) {
    const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(R);
    for (std::vector<std::byte>& buffer : scratch_)
      if (buffer.size() < bytes) buffer.resize(bytes);
  }
  template <class R>
  R* scratch(int thread) {
    return reinterpret_cast<R*>(scratch_[static_cast<std::size_t>(thread)].data());
  }

  // Column sums in a fixed order: rows are cut into a fixed number of pieces whatever the thread
  // count, each piece adds up its own `width` columns of `outputs` sums, and the pieces are added
  // in order.
  template <class A, class F>
  void reduce_columns(std::int64_t rows, std::int64_t width, int outputs, A* const* targets,
                      const F& piece);

  // The sum of piece(begin, end) over [0, n) cut at fixed places.
  template <class F>
  double reduce(std::int64_t n, const F& piece);

  ThreadPool pool_;
  std::vector<std::vector<std::byte>> scratch_;  // one per thread
  std::vector<std::byte> partials_;              // reduce_columns
};

}  // namespace kintsugi
