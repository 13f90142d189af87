#pragma once

#include <array>
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
  DeviceFacts device_facts() override;
  std::size_t available_bytes() const override;
  std::size_t own_bytes() const override;

  void upload(Tensor destination, const void* source) override;
  void download(void* destination, Tensor source) override;
  void fill(Tensor x, double value) override;
  void synchronize() override {}

  bool is_on_host(const Tensor&) const override { return true; }
  std::size_t available_host_bytes() const override { return available_bytes(); }
  Transfer to_device(Tensor device, Tensor host) override;
  Transfer to_host(Tensor host, Tensor device) override;
  void wait(Transfer) override {}
  void finish(Transfer) override {}

 protected:
#define KINTSUGI_OPERATION(name, parameters, ...) void do_##name parameters override;
#include "backend/operations.def"

 private:
  // Scratch memory of each thread. It grows to the largest request, so that nothing is allocated
  // once every shape has been seen. All threads grow together, since any of them may run any task.
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

  // Column sums in a fixed order. The rows are split into a number of blocks that does not depend
  // on the thread count; sum_rows(begin, end, sums) adds up a block's rows into `outputs` sums of
  // `width` columns each; the blocks are then added to `targets` in order.
  template <class A, class F>
  void reduce_columns(std::int64_t rows, std::int64_t width, int outputs, A* const* targets,
                      const F& sum_rows);

  void matmul_batch(Tensor c, Tensor a, Tensor b, const MatmulOptions& options);
  static std::int64_t used_rows(const ExpertRows& rows);
  // experts.cpp. Copies of rows are in the memory of this operand of a matmul.
  Tensor expert_rows(const Tensor& x, bool tokens, const ExpertRows& rows, std::int64_t first,
                     std::int64_t count, int operand);

  // The sum of sum_range(begin, end) over [0, n), which is split into blocks of a fixed size.
  template <class F>
  double reduce(std::int64_t n, const F& sum_range);

  // retention.cpp. Computes the states between chunks: first slot = x^T y of each chunk, then a
  // scan replaces each slot by the state before its chunk, starting from `given`. `reverse` scans
  // from the last chunk to the first, for the gradients.
  template <class T>
  void sum_and_scan(const Tensor& slots, const Tensor& x, const Tensor& y, const Tensor& given,
                    const RetentionSizes& n, const RetentionOptions& options, bool reverse);
  // state = g^length state + sum of factor(g, i) x_i^T y_i
  template <class F>
  void add_to_state(const Tensor& state, const Tensor& x, const Tensor& y,
                    const RetentionOptions& options, const F& factor);

  ThreadPool pool_;
  std::vector<std::vector<std::byte>> scratch_;     // one per thread
  std::vector<std::byte> partials_;                 // reduce_columns
  std::array<std::vector<std::byte>, 2> gathered_;  // expert_rows
};

}  // namespace kintsugi
