#pragma once

#include <array>
#include <initializer_list>
#include <map>

#include "backend/backend.h"
#include "backend/operation_trace.h"

namespace kintsugi {

// The `sim` backend: computes nothing and records every operation in a trace. Its addresses must
// not be dereferenced.
class SimBackend final : public Backend {
 public:
  // The trace must outlive the backend. `classifier` is what classifier_elements() returns on the
  // device that is planned for. `expert_load`: rows of this rank's experts, relative to the mean.
  explicit SimBackend(OperationTrace& trace, std::int64_t classifier = std::int64_t{1} << 28,
                      double expert_load = 1)
      : trace_(&trace), classifier_(classifier), expert_load_(expert_load) {}

  void* allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  void release(void*, std::size_t) noexcept override {}
  Allocator& host_memory() override { return host_memory_; }
  std::string description() const override { return "sim: counts operations, computes nothing"; }
  Peak peak_flops(DType) override { return {0, "the sim backend computes nothing"}; }
  std::size_t available_bytes() const override { return std::size_t{1} << 62; }
  std::size_t own_bytes() const override { return 0; }
  std::int64_t classifier_elements() const override { return classifier_; }

  bool is_on_host(const Tensor&) const override { return false; }
  std::size_t available_host_bytes() const override { return std::size_t{1} << 62; }
  Transfer to_device(Tensor, Tensor) override { return {}; }
  Transfer to_host(Tensor, Tensor) override { return {}; }
  void wait(Transfer) override {}
  void finish(Transfer) override {}

  void upload(Tensor destination, const void* source) override;
  void download(void* destination, Tensor source) override;
  void fill(Tensor x, double value) override;
  void synchronize() override {}

  // Public for CostMeter, which counts a call whose operands were checked.
#define KINTSUGI_OPERATION(name, parameters, ...) void do_##name parameters override;
#include "backend/operations.def"

 private:
  void add_memory(const char* name, std::initializer_list<Tensor> tensors, double extra = 0);
  void add_matmul(const char* name, DType dtype, std::int64_t m, std::int64_t n, std::int64_t k,
                  double bytes);
  void add_grouped(const char* name, const Tensor& c, const Tensor& a, const Tensor& b,
                   bool gradient, const ExpertRows& rows, double extra);
  double used_part(const ExpertRows& rows) const;
  void chunk_matmuls(const char* name, DType dtype, const RetentionSizes& sizes,
                     std::initializer_list<std::array<std::int64_t, 3>> matmuls);
  void state_sum(const char* name, const Tensor& state, const Tensor& x, const Tensor& y);
  void attention(TracedOperation::Kind kind, const Tensor& q, const Tensor& k, double multiplied,
                 double bytes, const AttentionOptions& options);

  OperationTrace* trace_;
  std::int64_t classifier_;
  double expert_load_;
  PlanningAllocator memory_, host_memory_;
  std::map<const void*, double> used_;  // the part of the rows of a grouped matmul's result
};

}  // namespace kintsugi
