#include "backend/traced_backend.h"

#include "backend/operation_name.h"

namespace kintsugi {
namespace {

class Span {
 public:
  template <class F>
  Span(Trace& trace, F&& name) : trace_(trace.on() ? &trace : nullptr) {
    if (trace_ != nullptr)
      span_ = {
          .kind = SpanKind::Compute, .lane = "compute", .name = name(), .begin_s = trace.now()};
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

}  // namespace

void TracedBackend::begin_phase(std::string name) {
  phase_ = {.kind = SpanKind::Pipeline,
            .lane = "pipeline",
            .name = std::move(name),
            .begin_s = Trace::now()};
}

void TracedBackend::end_phase() noexcept {
  phase_.end_s = Trace::now();
  trace_.add(std::move(phase_));
}

Backend::Transfer TracedBackend::to_device(Tensor device, Tensor host) {
  const Span span(trace_, [&] { return "to device"; });
  return inner_->to_device(device, host);
}
Backend::Transfer TracedBackend::to_host(Tensor host, Tensor device) {
  const Span span(trace_, [&] { return "to host"; });
  return inner_->to_host(host, device);
}
void TracedBackend::upload(Tensor destination, const void* source) {
  const Span span(trace_, [&] { return "upload"; });
  inner_->upload(destination, source);
}
void TracedBackend::download(void* destination, Tensor source) {
  const Span span(trace_, [&] { return "download"; });
  inner_->download(destination, source);
}
void TracedBackend::copy(Tensor destination, Tensor source) {
  const Span span(trace_, [&] { return "copy"; });
  inner_->copy(destination, source);
}
void TracedBackend::fill(Tensor x, double value) {
  const Span span(trace_, [&] { return "fill"; });
  inner_->fill(x, value);
}
void TracedBackend::matmul(Tensor c, Tensor a, Tensor b, const MatmulOptions& options) {
  const Span span(trace_, [&] { return matmul_name(c, a, options); });
  inner_->matmul(c, a, b, options);
}
void TracedBackend::bias_backward(Tensor dbias, Tensor dy) {
  const Span span(trace_, [&] { return "bias_backward"; });
  inner_->bias_backward(dbias, dy);
}
void TracedBackend::rms_norm_forward(Tensor y, Tensor rstd, Tensor x, Tensor weight, double eps) {
  const Span span(trace_, [&] { return "rms_norm_forward"; });
  inner_->rms_norm_forward(y, rstd, x, weight, eps);
}
void TracedBackend::rms_norm_backward(Tensor dx, Tensor dweight, Tensor dy, Tensor x, Tensor weight,
                                      Tensor rstd, Tensor residual_gradient) {
  const Span span(trace_, [&] { return "rms_norm_backward"; });
  inner_->rms_norm_backward(dx, dweight, dy, x, weight, rstd, residual_gradient);
}
void TracedBackend::layer_norm_forward(Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor weight,
                                       Tensor bias, double eps) {
  const Span span(trace_, [&] { return "layer_norm_forward"; });
  inner_->layer_norm_forward(y, mean, rstd, x, weight, bias, eps);
}
void TracedBackend::layer_norm_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dy,
                                        Tensor x, Tensor weight, Tensor mean, Tensor rstd,
                                        Tensor residual_gradient) {
  const Span span(trace_, [&] { return "layer_norm_backward"; });
  inner_->layer_norm_backward(dx, dweight, dbias, dy, x, weight, mean, rstd, residual_gradient);
}
void TracedBackend::attention_forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v,
                                      const AttentionOptions& options) {
  const Span span(trace_, [&] { return "attention_forward"; });
  inner_->attention_forward(out, lse, q, k, v, options);
}
void TracedBackend::attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out,
                                       Tensor lse, Tensor q, Tensor k, Tensor v,
                                       const AttentionOptions& options) {
  const Span span(trace_, [&] { return "attention_backward"; });
  inner_->attention_backward(dq, dk, dv, dout, out, lse, q, k, v, options);
}
void TracedBackend::attention_merge(Tensor out, Tensor lse, Tensor part_out, Tensor part_lse) {
  const Span span(trace_, [&] { return "attention_merge"; });
  inner_->attention_merge(out, lse, part_out, part_lse);
}
void TracedBackend::rope(Tensor x, Tensor table, Tensor positions, bool inverse) {
  const Span span(trace_, [&] { return "rope"; });
  inner_->rope(x, table, positions, inverse);
}
void TracedBackend::swiglu_forward(Tensor out, Tensor gate_up) {
  const Span span(trace_, [&] { return "swiglu_forward"; });
  inner_->swiglu_forward(out, gate_up);
}
void TracedBackend::swiglu_backward(Tensor dgate_up, Tensor dout, Tensor gate_up) {
  const Span span(trace_, [&] { return "swiglu_backward"; });
  inner_->swiglu_backward(dgate_up, dout, gate_up);
}
void TracedBackend::gelu_forward(Tensor out, Tensor x) {
  const Span span(trace_, [&] { return "gelu_forward"; });
  inner_->gelu_forward(out, x);
}
void TracedBackend::gelu_backward(Tensor dx, Tensor dout, Tensor x) {
  const Span span(trace_, [&] { return "gelu_backward"; });
  inner_->gelu_backward(dx, dout, x);
}
void TracedBackend::dropout(Tensor y, Tensor x, const DropoutOptions& options, Tensor residual) {
  const Span span(trace_, [&] { return "dropout"; });
  inner_->dropout(y, x, options, residual);
}
void TracedBackend::add(Tensor y, Tensor x) {
  const Span span(trace_, [&] { return "add"; });
  inner_->add(y, x);
}
void TracedBackend::embedding_forward(Tensor out, Tensor ids, Tensor table, bool accumulate,
                                      std::int64_t first_row) {
  const Span span(trace_, [&] { return "embedding_forward"; });
  inner_->embedding_forward(out, ids, table, accumulate, first_row);
}
void TracedBackend::embedding_backward(Tensor dtable, Tensor ids, Tensor dout,
                                       std::int64_t first_row) {
  const Span span(trace_, [&] { return "embedding_backward"; });
  inner_->embedding_backward(dtable, ids, dout, first_row);
}
void TracedBackend::cross_entropy(Tensor losses, Tensor logits, Tensor targets,
                                  double gradient_scale) {
  const Span span(trace_, [&] { return "cross_entropy"; });
  inner_->cross_entropy(losses, logits, targets, gradient_scale);
}
void TracedBackend::cross_entropy_partial(Tensor partial, Tensor logits, Tensor targets,
                                          std::int64_t first_column) {
  const Span span(trace_, [&] { return "cross_entropy_partial"; });
  inner_->cross_entropy_partial(partial, logits, targets, first_column);
}
void TracedBackend::cross_entropy_merged(Tensor losses, Tensor logits, Tensor targets,
                                         Tensor partials, std::int64_t first_column,
                                         double gradient_scale) {
  const Span span(trace_, [&] { return "cross_entropy_merged"; });
  inner_->cross_entropy_merged(losses, logits, targets, partials, first_column, gradient_scale);
}
void TracedBackend::sum(Tensor out, Tensor x) {
  const Span span(trace_, [&] { return "sum"; });
  inner_->sum(out, x);
}
void TracedBackend::squared_norm(Tensor out, Tensor x) {
  const Span span(trace_, [&] { return "squared_norm"; });
  inner_->squared_norm(out, x);
}
void TracedBackend::clip_scale(Tensor scale, Tensor squared_norm, double clip, double unscale) {
  const Span span(trace_, [&] { return "clip_scale"; });
  inner_->clip_scale(scale, squared_norm, clip, unscale);
}
void TracedBackend::adamw(Tensor weight, Tensor master, Tensor moment1, Tensor moment2,
                          Tensor gradient, Tensor gradient_scale, const AdamWOptions& options) {
  const Span span(trace_, [&] { return "adamw"; });
  inner_->adamw(weight, master, moment1, moment2, gradient, gradient_scale, options);
}

}  // namespace kintsugi
