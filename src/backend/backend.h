#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/checks/checks.h"
#include "backend/device.h"
#include "backend/operation_options.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace kintsugi {

// The device time of one kind of operation.
struct OperationTime {
  std::string name;
  long calls = 0;
  double milliseconds = 0;
};

// The memory of one device and the operations on it, each about as large as a fused kernel. Layers
// use only this interface.
//
// Conventions for every operation:
// - Activations are (tokens, width), row-major; tokens = sequences x sequence length. Their dtype
//   is the precision of the training run.
// - Statistics, losses and parameter gradients are in accumulator precision (fp32, or fp64 when
//   training in fp64).
// - Output operands come first. Parameter gradients are accumulated (matmul: only with
//   `accumulate`). Activation gradients are overwritten unless the operation says otherwise. An
//   empty Tensor means that the operand is absent.
// - Calls are queued in order on the device. Only download(), synchronize() and finish() block.
class Backend : public Allocator {
 public:
  virtual std::string description() const = 0;  // "cpu: 2 threads, OpenBLAS neoversev1"
  // What talks to the device beside the backend needs it: communicators, meters, reports.
  virtual Device device() const { return {}; }
  // The device's peak matmul rate in a precision, the denominator of MFU, and its source.
  struct Peak {
    double flops_per_s = 0;
    std::string source;
  };
  virtual Peak peak_flops(DType dtype) = 0;
  // What the analysis of a profile needs to know of the device; 0: not known. May measure it.
  struct DeviceFacts {
    double memory_bytes_per_s = 0;
    std::int64_t multiprocessors = 0;
  };
  virtual DeviceFacts device_facts() { return {}; }
  // Why the device cannot run matmul_fp8 with these scales, in a few words; empty: it can.
  virtual std::string why_no_fp8(bool one_scale) const {
    (void)one_scale;
    return "";
  }
  virtual std::size_t available_bytes() const = 0;
  // Memory that the backend allocates outside the arena (conversion tiles, library workspace).
  virtual std::size_t own_bytes() const = 0;

  // The number of logits that the classifier should compute at a time: few enough to stay in
  // cache on a CPU, enough to fill a GPU.
  virtual std::int64_t classifier_elements() const { return std::int64_t{1} << 24; }

  // ---- memory. upload, download and fill also accept tensors in host_memory().
  virtual void upload(Tensor destination, const void* source) = 0;  // contiguous, from host
  virtual void download(void* destination, Tensor source) = 0;      // contiguous, to host; blocks
  virtual void fill(Tensor x, double value) = 0;
  virtual void synchronize() = 0;
  // Runs `calls`, which must queue the same operations on the same tensors for the same `key`. A
  // backend may record them in the second call and replay the recording afterwards (CUDA graphs).
  virtual void replay(std::uint64_t key, const std::function<void()>& calls) {
    (void)key;
    calls();
  }
  // traces() returns whether operations are being traced now (core/trace.h). begin_phase and
  // end_phase give the operations queued between them a common name (backend/phase.h). Phases nest.
  virtual bool traces() const { return false; }
  virtual void begin_phase(std::string name) { (void)name; }
  virtual void end_phase() noexcept {}

  // The time at which the device reached an event, in seconds of the trace. The event must be
  // recorded after the trace began. Only with a device().stream.
  virtual double event_time(gpu::Event event) {
    (void)event;
    return 0;
  }
  // The device times of the operations since the last call, for a backend that was told to measure
  // them.
  virtual std::vector<OperationTime> take_operation_times() { return {}; }

  // ---- host memory
  virtual std::size_t available_host_bytes() const = 0;
  // Returns whether host threads can read and write the tensor's memory.
  virtual bool is_on_host(const Tensor& x) const = 0;
  // The backend for operations on tensors in host_memory(); its calls block until they are done.
  // nullptr if this backend was created without one. The CPU backend returns itself.
  virtual Backend* host() { return this; }
  // Asynchronous copies between host_memory() and the device. Both tensors are contiguous and of
  // the same size. Copies of one direction are done in order and overlap with operations. A copy
  // starts when the operations queued before it are done; the call returns immediately. Each copy
  // must be waited for exactly once, in any order: wait() makes operations and copies queued
  // afterwards see its result, finish() blocks the host until it is done. Until then, nothing may
  // use its tensors.
  struct Transfer {
    std::int64_t ticket = 0;  // 0: nothing to wait for
  };
  virtual Transfer to_device(Tensor device, Tensor host) = 0;
  virtual Transfer to_host(Tensor host, Tensor device) = 0;
  virtual void wait(Transfer transfer) = 0;
  virtual void finish(Transfer transfer) = 0;
  // Totals of the copies that were waited for so far, without those in a replay.
  struct TransferTotals {
    std::int64_t bytes = 0;
    double busy_s = 0;  // between a copy's start and its end
  };
  struct LinkTotals {
    TransferTotals to_device, to_host;
  };
  virtual LinkTotals link_totals() { return {}; }

  // ---- operations: one function per entry of operations.def. It checks the operands; a backend
  // implements do_…, which relies on that.
#define KINTSUGI_OPERATION(name, parameters, ...) \
  void name parameters {                          \
    Checks(#name).name(__VA_ARGS__);              \
    do_##name(__VA_ARGS__);                       \
  }
#include "backend/operations.def"

 private:
  friend class TracedBackend;  // calls do_… of the backend that it wraps
#define KINTSUGI_OPERATION(name, parameters, ...) virtual void do_##name parameters = 0;
#include "backend/operations.def"
};

}  // namespace kintsugi
