#include "backend/traced_backend.h"

#include <string>
#include <utility>

#include "backend/operation_name.h"

namespace kintsugi {
namespace {

class Span {
 public:
  template <class F>
  Span(Trace& trace, F&& name) : trace_(trace.on() ? &trace : nullptr) {
    if (trace_ != nullptr)
      span_ = {
          .kind = SpanKind::Operation, .lane = "compute", .name = name(), .begin_s = trace.now()};
  }
  ~Span() {
    if (trace_ == nullptr) return;
    span_.end_s = trace_->now();
    trace_->add(std::move(span_));
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Trace* trace_;
  TraceSpan span_;
};

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

  void upload(Tensor destination, const void* source) override {
    const Span span(trace_, [] { return "upload"; });
    inner_->upload(destination, source);
  }
  void download(void* destination, Tensor source) override {
    const Span span(trace_, [] { return "download"; });
    inner_->download(destination, source);
  }
  void fill(Tensor x, double value) override {
    const Span span(trace_, [] { return "fill"; });
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
    const Span span(trace_, [] { return "to device"; });
    return inner_->to_device(device, host);
  }
  Transfer to_host(Tensor host, Tensor device) override {
    const Span span(trace_, [] { return "to host"; });
    return inner_->to_host(host, device);
  }
  void wait(Transfer transfer) override { inner_->wait(transfer); }
  void finish(Transfer transfer) override { inner_->finish(transfer); }
  LinkTotals link_totals() override { return inner_->link_totals(); }
  bool traces() const override { return trace_.on(); }
  void begin_phase(std::string name) override {
    phase_ = {.kind = SpanKind::Phase,
              .lane = "pipeline",
              .name = std::move(name),
              .begin_s = Trace::now()};
  }
  void end_phase() noexcept override {
    phase_.end_s = Trace::now();
    trace_.add(std::move(phase_));
  }

#define KINTSUGI_OPERATION(name, parameters, ...)                                \
  void name parameters override {                                                \
    const Span span(trace_, [&] { return operation_name(#name, __VA_ARGS__); }); \
    inner_->name(__VA_ARGS__);                                                   \
  }
#include "backend/operations.def"

 private:
  std::unique_ptr<Backend> inner_;
  Trace& trace_;
  TraceSpan phase_;
};

}  // namespace

std::unique_ptr<Backend> make_traced_backend(std::unique_ptr<Backend> inner, Trace& trace) {
  return std::make_unique<TracedBackend>(std::move(inner), trace);
}

}  // namespace kintsugi
