#include "backend/traced_backend.h"

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/operation_cost.h"

namespace kintsugi {
namespace {

// The time from here to the end of the scope. `span` is called only while the trace is on.
class TimedSpan {
 public:
  template <class F>
  TimedSpan(Trace& trace, F&& span) : trace_(trace.on() ? &trace : nullptr) {
    if (trace_ == nullptr) return;
    span_ = span();
    span_.begin_s = Trace::now();
  }
  ~TimedSpan() {
    if (trace_ == nullptr) return;
    span_.end_s = Trace::now();
    trace_->add(std::move(span_));
  }
  TimedSpan(const TimedSpan&) = delete;
  TimedSpan& operator=(const TimedSpan&) = delete;

 private:
  Trace* trace_;
  TraceSpan span_;
};

TraceSpan copy_span(SpanKind kind, const char* name, const Tensor& x) {
  return {
      .kind = kind, .lane = "copies", .name = name, .bytes = static_cast<std::int64_t>(x.bytes())};
}

}  // namespace

class TracedBackend final : public Backend {
 public:
  TracedBackend(std::unique_ptr<Backend> inner, Trace& trace)
      : inner_(std::move(inner)), trace_(trace), repeat_(operation_repeat()) {}

  void* allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  void release(void* address, std::size_t bytes) noexcept override {
    inner_->release(address, bytes);
  }
  std::string description() const override { return inner_->description(); }
  Peak peak_flops(DType dtype) override { return inner_->peak_flops(dtype); }
  DeviceFacts device_facts() override { return inner_->device_facts(); }
  std::string why_no_fp8(bool one_scale) const override { return inner_->why_no_fp8(one_scale); }
  std::size_t available_bytes() const override { return inner_->available_bytes(); }
  std::size_t own_bytes() const override { return inner_->own_bytes(); }
  std::int64_t classifier_elements() const override { return inner_->classifier_elements(); }

  void upload(Tensor destination, const void* source) override {
    const TimedSpan span(trace_,
                         [&] { return copy_span(SpanKind::Memcpy, "upload", destination); });
    inner_->upload(destination, source);
  }
  void download(void* destination, Tensor source) override {
    const TimedSpan span(trace_, [&] { return copy_span(SpanKind::Memcpy, "download", source); });
    inner_->download(destination, source);
  }
  void fill(Tensor x, double value) override {
    const TimedSpan span(trace_, [&] { return copy_span(SpanKind::Memset, "fill", x); });
    inner_->fill(x, value);
  }
  void synchronize() override { inner_->synchronize(); }
  void replay(std::uint64_t key, const std::function<void()>& calls) override {
    inner_->replay(key, calls);
  }
  Allocator& host_memory() override { return inner_->host_memory(); }
  bool is_on_host(const Tensor& x) const override { return inner_->is_on_host(x); }
  std::size_t available_host_bytes() const override { return inner_->available_host_bytes(); }
  Transfer to_device(Tensor device, Tensor host) override {
    const TimedSpan span(trace_, [&] { return copy_span(SpanKind::Memcpy, "to device", device); });
    return inner_->to_device(device, host);
  }
  Transfer to_host(Tensor host, Tensor device) override {
    const TimedSpan span(trace_, [&] { return copy_span(SpanKind::Memcpy, "to host", device); });
    return inner_->to_host(host, device);
  }
  void wait(Transfer transfer) override { inner_->wait(transfer); }
  void finish(Transfer transfer) override { inner_->finish(transfer); }
  LinkTotals link_totals() override { return inner_->link_totals(); }
  bool traces() const override { return trace_.on(); }
  void begin_phase(std::string name) override {
    const std::lock_guard lock(mutex_);
    phases_.push_back({.kind = SpanKind::Phase,
                       .lane = phases_.empty() ? "pipeline" : "layers",
                       .name = std::move(name),
                       .begin_s = Trace::now()});
  }
  void end_phase() noexcept override {
    const std::lock_guard lock(mutex_);
    phases_.back().end_s = Trace::now();
    trace_.add(std::move(phases_.back()));
    phases_.pop_back();
  }

 private:
#define KINTSUGI_OPERATION(operation, parameters, ...)                                        \
  void do_##operation parameters override {                                                   \
    const TimedSpan span(trace_, [&] {                                                        \
      const std::lock_guard lock(mutex_);                                                     \
      return span_of(operation_name(#operation, __VA_ARGS__), meter_.operation(__VA_ARGS__)); \
    });                                                                                       \
    for (int i = times_of(#operation); i > 0; --i) inner_->do_##operation(__VA_ARGS__);       \
  }
#include "backend/operations.def"

  int times_of(const char* operation) const { return trace_.on() ? repeat_.of(operation) : 1; }
  // Call it with the mutex.
  TraceSpan span_of(std::string name, const OperationCost& cost) {
    TraceSpan span = operation_span(std::move(name), cost);
    span.operation = ++operations_;
    if (!phases_.empty()) span.phase = phases_.front().name;
    if (phases_.size() > 1) span.layer = phases_[1].name;
    return span;
  }

  const std::unique_ptr<Backend> inner_;
  Trace& trace_;
  const OperationRepeat repeat_;
  std::mutex mutex_;  // of what follows: the host's backend may be called by several threads
  CostMeter meter_;
  std::int64_t operations_ = 0;
  std::vector<TraceSpan> phases_;  // open ones, the outer first
};

std::unique_ptr<Backend> make_traced_backend(std::unique_ptr<Backend> inner, Trace& trace) {
  return std::make_unique<TracedBackend>(std::move(inner), trace);
}

}  // namespace kintsugi
