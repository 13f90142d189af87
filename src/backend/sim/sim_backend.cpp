#include "backend/sim/sim_backend.h"

#include "backend/attention_mask.h"

namespace kintsugi {
namespace {

using Kind = TracedOperation::Kind;

double bytes_of(std::initializer_list<Tensor> tensors) {
  double sum = 0;
  for (const Tensor& x : tensors)
    if (x) sum += static_cast<double>(x.bytes());
  return sum;
}

}  // namespace

void SimBackend::moved(const char* name, std::initializer_list<Tensor> tensors, double extra) {
  TracedOperation operation{.kind = Kind::Memory, .name = name, .bytes = bytes_of(tensors) + extra};
  if (tensors.size() > 0) operation.dtype = tensors.begin()->dtype();
  trace_->operations.push_back(std::move(operation));
}

// ---- memory

void SimBackend::upload(Tensor destination, const void*) { moved("upload", {destination}); }
void SimBackend::download(void*, Tensor source) { moved("download", {source}); }
void SimBackend::copy(Tensor destination, Tensor source) { moved("copy", {destination, source}); }
void SimBackend::fill(Tensor x, double) { moved("fill", {x}); }

// ---- linear algebra

void SimBackend::matmul(Tensor c, Tensor a, Tensor b, const MatmulOptions& options) {
  const std::int64_t m = c.extent(0), n = c.extent(1), k = a.extent(options.transpose_a ? 0 : 1);
  double bytes =
      bytes_of({a, b, c, options.bias, options.residual, options.gelu, options.gelu_input});
  if (options.accumulate) bytes += bytes_of({c});
  trace_->operations.push_back(
      {.kind = Kind::Matmul,
       .dtype = a.dtype(),
       .name = "matmul",
       .flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k),
       .bytes = bytes,
       .m = m,
       .n = n,
       .k = k});
}
void SimBackend::bias_backward(Tensor dbias, Tensor dy) { moved("bias_backward", {dbias, dy}); }

// ---- normalisation

void SimBackend::rms_norm_forward(Tensor y, Tensor rstd, Tensor x, Tensor weight, double) {
  moved("rms_norm_forward", {y, rstd, x, weight});
}
void SimBackend::rms_norm_backward(Tensor dx, Tensor dweight, Tensor dy, Tensor x, Tensor weight,
                                   Tensor rstd, Tensor residual_gradient) {
  moved("rms_norm_backward", {dx, dweight, dy, x, weight, rstd, residual_gradient});
}
void SimBackend::rms_norm_partial(Tensor sums, Tensor x) { moved("rms_norm_partial", {x, sums}); }
void SimBackend::rms_norm_merged(Tensor y, Tensor rstd, Tensor x, Tensor weight, Tensor sums,
                                 std::int64_t, double) {
  moved("rms_norm_merged", {y, rstd, x, weight, sums});
}
void SimBackend::rms_norm_backward_partial(Tensor sums, Tensor dy, Tensor x, Tensor weight) {
  moved("rms_norm_backward_partial", {dy, x, weight, sums});
}
void SimBackend::rms_norm_backward_merged(Tensor dx, Tensor dweight, Tensor dy, Tensor x,
                                          Tensor weight, Tensor rstd, Tensor sums, std::int64_t) {
  moved("rms_norm_backward_merged", {dx, dweight, dy, x, weight, rstd, sums});
}
void SimBackend::layer_norm_forward(Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor weight,
                                    Tensor bias, double) {
  moved("layer_norm_forward", {y, mean, rstd, x, weight, bias});
}
void SimBackend::layer_norm_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dy, Tensor x,
                                     Tensor weight, Tensor mean, Tensor rstd,
                                     Tensor residual_gradient) {
  moved("layer_norm_backward", {dx, dweight, dbias, dy, x, weight, mean, rstd, residual_gradient});
}

// ---- attention

void SimBackend::attention(Kind kind, const Tensor& q, const Tensor& k, double products,
                           double bytes, const AttentionOptions& options) {
  const std::int64_t queries = q.extent(1), heads = q.extent(2), dim = q.extent(3),
                     keys = k.extent(1);
  const double pairs = AttentionMask(options, queries, keys).pairs();
  const double rows = static_cast<double>(q.extent(0) * heads);
  trace_->operations.push_back(
      {.kind = kind,
       .dtype = q.dtype(),
       .name = kind == Kind::AttentionForward ? "attention_forward" : "attention_backward",
       .flops = 2 * products * static_cast<double>(dim) * rows * pairs,
       .bytes = bytes,
       .m = q.extent(0) * heads,
       .n = queries,
       .k = keys,
       .head_dim = dim});
}
void SimBackend::attention_forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v,
                                   const AttentionOptions& options) {
  attention(Kind::AttentionForward, q, k, 2, bytes_of({out, lse, q, k, v}), options);
}
// Scores once more, then the gradients of values, probabilities, queries and keys: five products.
void SimBackend::attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out,
                                    Tensor lse, Tensor q, Tensor k, Tensor v,
                                    const AttentionOptions& options) {
  attention(Kind::AttentionBackward, q, k, 5, bytes_of({dq, dk, dv, dout, out, lse, q, k, v}),
            options);
}
void SimBackend::attention_merge(Tensor out, Tensor lse, Tensor part_out, Tensor part_lse) {
  moved("attention_merge", {out, out, lse, lse, part_out, part_lse});
}
void SimBackend::rope(Tensor x, Tensor, Tensor positions, bool, RopePairs) {
  moved("rope", {x, x, positions});
}

// ---- element-wise

void SimBackend::swiglu_forward(Tensor out, Tensor gate_up) {
  moved("swiglu_forward", {out, gate_up});
}
void SimBackend::swiglu_backward(Tensor dgate_up, Tensor dout, Tensor gate_up) {
  moved("swiglu_backward", {dgate_up, dout, gate_up});
}
void SimBackend::gelu_forward(Tensor out, Tensor x) { moved("gelu_forward", {out, x}); }
void SimBackend::gelu_backward(Tensor dx, Tensor dout, Tensor x) {
  moved("gelu_backward", {dx, dout, x});
}
void SimBackend::dropout(Tensor y, Tensor x, const DropoutOptions&, Tensor residual) {
  moved("dropout", {y, x, residual});
}
void SimBackend::add(Tensor y, Tensor x) { moved("add", {y, y, x}); }

// ---- tokens

void SimBackend::embedding_forward(Tensor out, Tensor ids, Tensor, bool accumulate, std::int64_t) {
  moved("embedding_forward", {out, out, ids, accumulate ? out : Tensor()});
}
void SimBackend::embedding_backward(Tensor, Tensor ids, Tensor dout, std::int64_t) {
  // Rows of the gradient, in accumulator precision, are read and written.
  const double rows = static_cast<double>(dout.elements()) *
                      static_cast<double>(size_of(accumulator_of(dout.dtype())));
  moved("embedding_backward", {dout, ids}, 2 * rows);
}
void SimBackend::cross_entropy(Tensor losses, Tensor logits, Tensor targets,
                               double gradient_scale) {
  moved("cross_entropy",
        {logits, gradient_scale != 0 ? logits : Tensor(), logits, losses, targets});
}
void SimBackend::cross_entropy_partial(Tensor partial, Tensor logits, Tensor targets,
                                       std::int64_t) {
  moved("cross_entropy_partial", {logits, partial, targets});
}
void SimBackend::cross_entropy_merged(Tensor losses, Tensor logits, Tensor targets, Tensor partials,
                                      std::int64_t, double gradient_scale) {
  moved("cross_entropy_merged",
        {gradient_scale != 0 ? logits : losses, gradient_scale != 0 ? logits : Tensor(), losses,
         targets, partials});
}

// ---- reductions and the optimizer

void SimBackend::sum(Tensor out, Tensor x) { moved("sum", {x, out}); }
void SimBackend::squared_norm(Tensor out, Tensor x) { moved("squared_norm", {x, out}); }
void SimBackend::clip_scale(Tensor scale, Tensor squared_norm, double, double) {
  moved("clip_scale", {scale, squared_norm});
}
void SimBackend::adamw(Tensor weight, Tensor master, Tensor moment1, Tensor moment2,
                       Tensor gradient, Tensor, const AdamWOptions&) {
  const bool copied = master.data() != weight.data();
  moved("adamw", {weight, copied ? master : weight, copied ? master : Tensor(), moment1, moment1,
                  moment2, moment2, gradient});
}

}  // namespace kintsugi
