#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/gpu/attention.h"
#include "backend/gpu/common.h"
#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/graph_replay.h"
#include "backend/gpu/host_memory.h"
#include "backend/gpu/kernels.h"
#include "backend/gpu/matmul.h"
#include "backend/gpu/operation_timer.h"
#include "backend/gpu/transfers.h"
#include "backend/operation_cost.h"

namespace kintsugi::gpu {

// Owns a stream that does not synchronize with the default stream.
class OwnStream {
 public:
  OwnStream();
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  Stream get() const { return stream_; }

 private:
  Stream stream_ = nullptr;
};

// Page-locked staging buffers for uploads: an upload returns as soon as its source has been copied
// to a buffer; the device copies from there in stream order.
class Staging {
 public:
  Staging();
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  void upload(void* destination, const void* source, std::size_t bytes, Stream stream);

 private:
  static constexpr std::size_t kSlotBytes = std::size_t{4} << 20;
  struct Slot {
    void* address = nullptr;
    Event done = nullptr;
  };
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;
};

class GpuBackend final : public Backend {
 public:
  explicit GpuBackend(const GpuOptions& options);  // its device is selected
  ~GpuBackend() override;

  // User error if matmuls are wrong. If attention is, our own kernels compute it from then on.
  void check_libraries();
  Stream stream() const { return stream_.get(); }

  void* allocate(std::size_t bytes) override;
  void release(void* address, std::size_t bytes) noexcept override;
  std::string description() const override;
  Device device() const override { return device_; }
  Peak peak_flops(DType dtype) override;
  DeviceFacts device_facts() override;
  std::string why_no_fp8(bool one_scale) const override;
  std::size_t available_bytes() const override;
  std::size_t own_bytes() const override;
  std::int64_t classifier_elements() const override;

  void upload(Tensor destination, const void* source) override;
  void download(void* destination, Tensor source) override;
  void fill(Tensor x, double value) override;
  void synchronize() override;
  void replay(std::uint64_t key, const std::function<void()>& calls) override;
  bool traces() const override { return timer_.traces(); }
  void begin_phase(std::string name) override { timer_.begin_phase(std::move(name)); }
  void end_phase() noexcept override { timer_.end_phase(); }
  double event_time(Event event) override { return timer_.seconds(event); }
  std::vector<OperationTime> take_operation_times() override { return timer_.take(); }

  Allocator& host_memory() override { return host_memory_; }
  bool is_on_host(const Tensor& x) const override { return host_memory_.contains(x.data()); }
  std::size_t available_host_bytes() const override;
  Backend* host() override { return options_.host.get(); }
  Transfer to_device(Tensor device, Tensor host) override;
  Transfer to_host(Tensor host, Tensor device) override;
  void wait(Transfer transfer) override { transfers_.wait(transfer, stream()); }
  void finish(Transfer transfer) override { transfers_.finish(transfer); }
  LinkTotals link_totals() override { return transfers_.totals(); }

 private:
#define KINTSUGI_OPERATION(operation, parameters, ...)                     \
  void do_##operation parameters override {                                \
    const auto span = timer_.span([&] {                                    \
      return operation_span(operation_name(#operation, __VA_ARGS__),       \
                            costs_.operation(__VA_ARGS__));                \
    });                                                                    \
    for (int i = timer_.traces() ? repeat_.of(#operation) : 1; i > 0; --i) \
      gpu::operation(context_, __VA_ARGS__);                               \
  }
#include "backend/operations.def"

  double measure_flops(DType dtype);
  Transfer start_transfer(Transfers::Direction direction, const Tensor& to, const Tensor& from);

  GpuOptions options_;
  Device device_;
  Traits traits_;
  OwnStream stream_;
  Workspace workspace_;
  Staging staging_;
  HostMemory host_memory_;
  Transfers transfers_;
  Context context_;
  Matmul matmul_;
  Attention attention_;
  std::string attention_library_;  // that computes attention; empty: not known
  GraphReplay graphs_;
  OperationTimer timer_;
  CostMeter costs_;
  const OperationRepeat repeat_ = operation_repeat();
};

}  // namespace kintsugi::gpu
