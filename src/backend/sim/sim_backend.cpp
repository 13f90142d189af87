#include "backend/sim/sim_backend.h"

#include <algorithm>

#include "backend/attention_mask.h"
#include "backend/retention.h"

namespace kintsugi {
namespace {

using Kind = TracedOperation::Kind;

double bytes_of(std::initializer_list<Tensor> tensors) {
  double sum = 0;
  for (const Tensor& x : tensors)
    if (x) sum += static_cast<double>(x.bytes());
  return sum;
}

// Like bytes_of, for tensors without memory, which bytes_of skips.
double planned_bytes(std::initializer_list<Tensor> tensors) {
  double sum = 0;
  for (const Tensor& x : tensors) sum += static_cast<double>(x.bytes());
  return sum;
}

}  // namespace

void SimBackend::add_memory(const char* name, std::initializer_list<Tensor> tensors, double extra) {
  TracedOperation operation{.kind = Kind::Memory, .name = name, .bytes = bytes_of(tensors) + extra};
  if (tensors.size() > 0) operation.dtype = tensors.begin()->dtype();
  trace_->operations.push_back(std::move(operation));
}

// ---- memory

void SimBackend::upload(Tensor destination, const void*) { add_memory("upload", {destination}); }
void SimBackend::download(void*, Tensor source) {
  add_memory("download", {source});
  trace_->operations.back().host_waits = true;
}
void SimBackend::do_copy(Tensor destination, Tensor source) {
  add_memory("copy", {destination, source});
}
void SimBackend::fill(Tensor x, double) { add_memory("fill", {x}); }

// ---- linear algebra

void SimBackend::add_matmul(const char* name, DType dtype, std::int64_t m, std::int64_t n,
                            std::int64_t k, double bytes) {
  trace_->operations.push_back(
      {.kind = Kind::Matmul,
       .dtype = dtype,
       .name = name,
       .flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k),
       .bytes = bytes,
       .m = m,
       .n = n,
       .k = k});
}

void SimBackend::do_matmul(Tensor c, Tensor a, Tensor b, const MatmulOptions& options) {
  const int rows = c.rank() - 2;
  const std::int64_t batch = rows == 0 ? 1 : c.extent(0);
  const std::int64_t m = c.extent(rows), n = c.extent(rows + 1),
                     k = a.extent(rows + (options.transpose_a ? 0 : 1));
  double bytes = bytes_of(
      {a, b, c, options.bias, options.residual, options.gelu, options.gelu_input, options.swiglu});
  if (options.accumulate) bytes += bytes_of({c});
  add_matmul("matmul", a.dtype(), batch * m, n, k, bytes);
}
void SimBackend::do_quantize(Quantized rows, Quantized columns, Tensor x,
                             const QuantizeOptions& options) {
  // x is read once for the scales, unless they are known or of rows alone, and once for the values.
  if (options.used.offsets)
    return add_memory("quantize", {},
                      used_part(options.used) * planned_bytes({x, rows.values, rows.scales}));
  const bool known = options.maxima && !options.one_scale,
             once = known || (!columns && !options.one_scale);
  add_memory("quantize",
             {x, once ? Tensor() : x, rows.values, rows.scales, columns.values, columns.scales});
}
void SimBackend::do_find_maxima(Maxima maxima, Tensor x, bool) {
  add_memory("find_maxima", {x, maxima.rows, maxima.columns});
}
void SimBackend::do_matmul_fp8(Tensor c, Quantized a, Quantized b, const MatmulOptions& options) {
  double bytes = bytes_of({a.values, b.values, c, options.bias, options.residual});
  if (options.accumulate) bytes += bytes_of({c});
  add_matmul("matmul_fp8", DType::F8, c.extent(0), c.extent(1), a.columns(), bytes);
}
void SimBackend::do_bias_backward(Tensor dbias, Tensor dy) {
  add_memory("bias_backward", {dbias, dy});
}

// ---- normalisation

void SimBackend::do_rms_norm_forward(Tensor y, Tensor rstd, Tensor x, Tensor weight, double,
                                     Maxima maxima) {
  add_memory("rms_norm_forward", {y, rstd, x, weight, maxima.rows, maxima.columns});
}
void SimBackend::do_rms_norm_backward(Tensor dx, Tensor dweight, Tensor dy, Tensor x, Tensor weight,
                                      Tensor rstd, Tensor residual_gradient, Maxima maxima) {
  add_memory("rms_norm_backward",
             {dx, dweight, dy, x, weight, rstd, residual_gradient, maxima.rows, maxima.columns});
}
void SimBackend::do_rms_norm_partial(Tensor sums, Tensor x) {
  add_memory("rms_norm_partial", {x, sums});
}
void SimBackend::do_rms_norm_merged(Tensor y, Tensor rstd, Tensor x, Tensor weight, Tensor sums,
                                    std::int64_t, double) {
  add_memory("rms_norm_merged", {y, rstd, x, weight, sums});
}
void SimBackend::do_rms_norm_backward_partial(Tensor sums, Tensor dy, Tensor x, Tensor weight) {
  add_memory("rms_norm_backward_partial", {dy, x, weight, sums});
}
void SimBackend::do_rms_norm_backward_merged(Tensor dx, Tensor dweight, Tensor dy, Tensor x,
                                             Tensor weight, Tensor rstd, Tensor sums,
                                             std::int64_t) {
  add_memory("rms_norm_backward_merged", {dx, dweight, dy, x, weight, rstd, sums});
}
void SimBackend::do_layer_norm_forward(Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor weight,
                                       Tensor bias, double, Maxima maxima) {
  add_memory("layer_norm_forward", {y, mean, rstd, x, weight, bias, maxima.rows, maxima.columns});
}
void SimBackend::do_layer_norm_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dy,
                                        Tensor x, Tensor weight, Tensor mean, Tensor rstd,
                                        Tensor residual_gradient, Maxima maxima) {
  add_memory("layer_norm_backward", {dx, dweight, dbias, dy, x, weight, mean, rstd,
                                     residual_gradient, maxima.rows, maxima.columns});
}

// ---- attention

void SimBackend::attention(Kind kind, const Tensor& q, const Tensor& k, double multiplied,
                           double bytes, const AttentionOptions& options) {
  const std::int64_t queries = q.extent(1), heads = q.extent(2), keys = k.extent(1);
  const double pairs = AttentionMask(options, queries, keys).pairs();
  const double rows = static_cast<double>(q.extent(0) * heads);
  trace_->operations.push_back(
      {.kind = kind,
       .dtype = q.dtype(),
       .name = kind == Kind::AttentionForward ? "attention_forward" : "attention_backward",
       .flops = 2 * multiplied * rows * pairs,
       .bytes = bytes,
       .m = q.extent(0) * heads,
       .n = queries,
       .k = keys,
       .head_dim = q.extent(3)});
}
void SimBackend::do_attention_forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v,
                                      const AttentionOptions& options) {
  attention(Kind::AttentionForward, q, k, static_cast<double>(q.extent(3) + v.extent(3)),
            bytes_of({out, lse, q, k, v}), options);
}
// Recomputes the scores, then the gradients of values, probabilities, queries and keys: five
// matmuls.
void SimBackend::do_attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out,
                                       Tensor lse, Tensor q, Tensor k, Tensor v,
                                       const AttentionOptions& options) {
  attention(Kind::AttentionBackward, q, k, static_cast<double>(3 * q.extent(3) + 2 * v.extent(3)),
            bytes_of({dq, dk, dv, dout, out, lse, q, k, v}), options);
}
void SimBackend::do_attention_merge(Tensor out, Tensor lse, Tensor part_out, Tensor part_lse) {
  add_memory("attention_merge", {out, out, lse, lse, part_out, part_lse});
}
void SimBackend::do_paged_attention(Tensor out, Tensor q, Tensor keys, Tensor values,
                                    const PagedAttentionOptions& options) {
  // Every tile reads the keys and values of its sequence, at most max_keys.
  const bool within = values.data() == keys.data();  // the values are a part of the keys
  const double tiles = static_cast<double>(options.tiles.extent(0)),
               width = static_cast<double>(keys.extent(2) *
                                           (keys.extent(3) + (within ? 0 : values.extent(3))));
  add_memory("paged_attention", {out, q},
             tiles * static_cast<double>(options.max_keys) * width *
                 static_cast<double>(size_of(keys.dtype())));
}
void SimBackend::do_rope_store(Tensor, Tensor, Tensor q, Tensor k, Tensor v, Tensor rows, Tensor,
                               Tensor positions) {
  add_memory("rope_store", {q, q, k, k, v, v, rows, positions});
}
void SimBackend::do_sum_heads(Tensor y, Tensor x) { add_memory("sum_heads", {y, x}); }
void SimBackend::do_rope(Tensor x, Tensor, Tensor positions, bool, RopePairs) {
  add_memory("rope", {x, x, positions});
}
void SimBackend::do_rope_backward(Tensor x, Tensor table, Tensor positions, std::int64_t heads,
                                  Maxima maxima) {
  const Tensor rotated = x.part(1, 0, heads * table.extent(1));  // the others are not written
  add_memory("rope_backward", {x, rotated, positions, maxima.rows, maxima.columns});
}

// ---- retention

// One batched matmul over all chunks for each of `matmuls`.
void SimBackend::chunk_matmuls(const char* name, DType dtype, const RetentionSizes& sizes,
                               std::initializer_list<std::array<std::int64_t, 3>> matmuls) {
  const std::int64_t chunks = sizes.batch * sizes.heads * sizes.chunks();
  for (const auto& [m, n, k] : matmuls)
    add_matmul(name, dtype, chunks * m, n, k,
               static_cast<double>(chunks * (m * k + k * n + m * n)) *
                   static_cast<double>(size_of(dtype)));
}
void SimBackend::do_retention_forward(Tensor out, Tensor q, Tensor k, Tensor v, Tensor state,
                                      Tensor, const RetentionOptions& options) {
  if (q.extent(1) == 1) return add_memory("retention_forward", {out, q, k, v, state});
  const RetentionSizes n = retention_sizes(k, v, options);
  const RetentionWorkspace buffers({}, k.dtype(), n, false);
  const std::int64_t c = n.chunk_tokens();
  chunk_matmuls("retention_forward", k.dtype(), n,
                {{n.k_dim, n.v_dim, c}, {c, n.v_dim, n.k_dim}, {c, c, n.k_dim}, {c, n.v_dim, c}});
  // Memory-bound work: scaled queries and keys, the scan, the decay of the scores.
  add_memory("retention_forward", {q, q, k, k},
             2 * planned_bytes({buffers.states, buffers.scores}));
}
void SimBackend::do_retention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor q,
                                       Tensor k, Tensor v, Tensor state, Tensor dstate, Tensor,
                                       const RetentionOptions& options) {
  if (q.extent(1) == 1)
    return add_memory("retention_backward", {dq, dk, dv, dout, q, k, v, state, dstate});
  const RetentionSizes n = retention_sizes(k, v, options);
  const RetentionWorkspace buffers({}, k.dtype(), n, true);
  const std::int64_t c = n.chunk_tokens();
  chunk_matmuls(
      "retention_backward", k.dtype(), n,
      {{n.k_dim, n.v_dim, c},  // state sums of both directions, scores and their gradients
       {n.k_dim, n.v_dim, c},
       {c, c, n.k_dim},
       {c, c, n.v_dim},
       {c, n.k_dim, n.v_dim},  // dq, dk, dv: through the state and inside the chunk
       {c, n.k_dim, c},
       {c, n.k_dim, n.v_dim},
       {c, n.k_dim, c},
       {c, n.v_dim, n.k_dim},
       {c, n.v_dim, c}});
  add_memory("retention_backward", {q, q, k, k, dq, dq, dk, dk},
             2 * planned_bytes({buffers.states, buffers.dstates, buffers.scores, buffers.dscores}));
}
void SimBackend::do_retention_state(Tensor state, Tensor k, Tensor v, Tensor,
                                    const RetentionOptions&) {
  state_sum("retention_state", state, k, v);
}
void SimBackend::do_retention_step(Tensor out, Tensor states, Tensor q, Tensor k, Tensor v,
                                   Tensor slots, Tensor, const RetentionOptions&) {
  const double state = static_cast<double>(states.bytes()) / static_cast<double>(states.extent(0));
  add_memory("retention_step", {out, q, k, v, slots}, 2 * static_cast<double>(q.extent(0)) * state);
}
void SimBackend::do_retention_decay(Tensor state, std::int64_t, const RetentionOptions&) {
  add_memory("retention_decay", {state, state});
}
void SimBackend::do_retention_state_backward(Tensor dstate, Tensor q, Tensor dout, Tensor,
                                             const RetentionOptions&) {
  state_sum("retention_state_backward", dstate, q, dout);
}
void SimBackend::state_sum(const char* name, const Tensor& state, const Tensor& x,
                           const Tensor& y) {
  if (x.extent(1) > 1)
    add_matmul(name, x.dtype(), x.extent(0) * x.extent(2) * x.extent(3), y.extent(3), x.extent(1),
               bytes_of({state, state, x, y}));
  add_memory(name, {state, state, x, x});  // decay of the state, and a scaled copy of x
}
void SimBackend::do_gated_norm_forward(Tensor y, Tensor rstd, Tensor x, Tensor gate, double) {
  add_memory("gated_norm_forward", {y, rstd, x, gate});
}
void SimBackend::do_gated_norm_backward(Tensor dx, Tensor dgate, Tensor dy, Tensor x, Tensor gate,
                                        Tensor rstd) {
  add_memory("gated_norm_backward", {dx, dgate, dy, x, gate, rstd});
}

// ---- experts

// Of the rows that there is memory for.
double SimBackend::used_part(const ExpertRows& rows) const {
  return std::min(1.0, expert_load_ * rows.used);
}

// The cost of the rows that are used, on average of the experts: c (rows, n) = a (rows, k) b
// or, of a gradient, c (k, n) = a^T b.
void SimBackend::add_grouped(const char* name, const Tensor& c, const Tensor& a, const Tensor& b,
                             bool gradient, const ExpertRows& rows, double extra) {
  const double used = used_part(rows) * static_cast<double>(rows.rows.elements());
  const std::int64_t groups = std::max<std::int64_t>(1, rows.offsets.elements() - 1);
  const auto each =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(used / static_cast<double>(groups)));
  const auto width = [](const Tensor& x) {  // bytes of a row
    return static_cast<double>(x.extent(x.rank() - 1)) * static_cast<double>(size_of(x.dtype()));
  };
  double bytes = bytes_of({rows.rows, rows.offsets}) + extra;
  for (const Tensor& x : {c, a, b})
    bytes += x.rank() == 3 ? static_cast<double>(x.bytes()) : used * width(x);
  const std::int64_t n = gradient ? b.extent(1) : c.extent(1), k = a.extent(1);
  add_matmul(name, a.dtype(), gradient ? k : each, n, gradient ? each : k, bytes);
  TracedOperation& operation = trace_->operations.back();
  operation.groups = groups;
  operation.uneven = !gradient;
  operation.flops = 2.0 * used * static_cast<double>(n) * static_cast<double>(k);
}

void SimBackend::do_route(Tensor ids, Tensor weights, Tensor logits, Tensor bias,
                          const RouteOptions&) {
  add_memory("route", {logits, ids, weights, bias});
}
void SimBackend::do_route_backward(Tensor dlogits, Tensor dweights, Tensor ids, Tensor logits,
                                   const RouteOptions&, const RouteLosses& losses) {
  add_memory("route_backward", {dlogits, dweights, ids, logits, losses.balance});
}
void SimBackend::do_route_statistics(Tensor counts, Tensor probabilities, Tensor squared_log_z,
                                     Tensor ids, Tensor logits, const RouteOptions&) {
  add_memory("route_statistics", {logits, ids, counts, probabilities, squared_log_z});
}
void SimBackend::do_balance_loss(Tensor loss, Tensor gradient, Tensor counts, Tensor probabilities,
                                 double, double) {
  add_memory("balance_loss", {gradient, counts, probabilities, loss});
}
void SimBackend::do_order_choices(ExpertRows rows, Tensor positions, Tensor ids, std::int64_t) {
  add_memory("order_choices", {ids, ids, positions, rows.rows, rows.offsets});
}
void SimBackend::do_limit_choices(Tensor kept, Tensor dropped, Tensor ids, const ChoiceLimit&) {
  add_memory("limit_choices", {kept, dropped, ids});
}
void SimBackend::do_find_visits(Tensor visits, Tensor ids, const ExpertOwners&) {
  add_memory("find_visits", {visits, ids});
}
void SimBackend::do_gather_rows(Tensor y, Tensor x, const ExpertRows& rows) {
  add_memory("gather_rows", {x, rows.rows}, planned_bytes({y}));
}
void SimBackend::do_grouped_matmul(Tensor c, Tensor a, Tensor b, const ExpertRows& rows,
                                   const GroupedOptions& options) {
  add_grouped("grouped_matmul", c, a, b, false, rows,
              options.accumulate ? used_part(rows) * planned_bytes({c}) : 0);
  used_[c.data()] = used_part(rows);
}
void SimBackend::do_grouped_matmul_fp8(Tensor c, Quantized a, Quantized b, const ExpertRows& rows,
                                       const GroupedOptions& options) {
  add_grouped("grouped_matmul_fp8", c, a.values, b.values.split_first(c.extent(1)), false, rows,
              options.accumulate ? used_part(rows) * planned_bytes({c}) : 0);
  used_[c.data()] = used_part(rows);
}
void SimBackend::do_grouped_weight_gradient(Tensor dw, Tensor a, Tensor b, const ExpertRows& rows,
                                            const GroupedOptions& options) {
  add_grouped("grouped_weight_gradient", dw, a, b, true, rows,
              options.accumulate ? bytes_of({dw}) : 0);
}
void SimBackend::do_expert_swiglu_forward(Tensor out, Tensor gate_up, Tensor weights,
                                          const ExpertRows& rows) {
  add_memory("expert_swiglu_forward", {weights, rows.rows},
             used_part(rows) * planned_bytes({out, gate_up}));
}
void SimBackend::do_expert_swiglu_backward(Tensor dgate_up, Tensor dweights, Tensor dout,
                                           Tensor gate_up, Tensor weights, const ExpertRows& rows) {
  add_memory("expert_swiglu_backward", {weights, dweights, rows.rows},
             used_part(rows) * planned_bytes({dgate_up, dout, gate_up}));
}
void SimBackend::do_combine_rows(Tensor y, Tensor x, Tensor positions, Tensor residual) {
  const auto used = used_.find(x.data());
  add_memory("combine_rows", {y, positions, residual},
             (used == used_.end() ? 1.0 : used->second) * planned_bytes({x}));
}

// ---- fresh weights

void SimBackend::do_draw(Tensor x, const DrawOptions&) { add_memory("draw", {x}); }

// ---- element-wise

void SimBackend::do_swiglu_forward(Tensor out, Tensor gate_up, Maxima maxima) {
  add_memory("swiglu_forward", {out, gate_up, maxima.rows, maxima.columns});
}
void SimBackend::do_swiglu_backward(Tensor dgate_up, Tensor dout, Tensor gate_up, Maxima maxima) {
  add_memory("swiglu_backward", {dgate_up, dout, gate_up, maxima.rows, maxima.columns});
}
void SimBackend::do_gelu_forward(Tensor out, Tensor x, Maxima maxima) {
  add_memory("gelu_forward", {out, x, maxima.rows, maxima.columns});
}
void SimBackend::do_gelu_backward(Tensor dx, Tensor dout, Tensor x, Maxima maxima) {
  add_memory("gelu_backward", {dx, dout, x, maxima.rows, maxima.columns});
}
void SimBackend::do_dropout(Tensor y, Tensor x, const DropoutOptions&, Tensor residual) {
  add_memory("dropout", {y, x, residual});
}
void SimBackend::do_add(Tensor y, Tensor x) { add_memory("add", {y, y, x}); }

// ---- tokens

void SimBackend::do_embedding_forward(Tensor out, Tensor ids, Tensor, bool accumulate,
                                      std::int64_t) {
  add_memory("embedding_forward", {out, out, ids, accumulate ? out : Tensor()});
}
void SimBackend::do_embedding_backward(Tensor, Tensor ids, Tensor dout, std::int64_t) {
  // The gradient's rows are read and written in accumulator precision.
  const double rows = static_cast<double>(dout.elements()) *
                      static_cast<double>(size_of(accumulator_of(dout.dtype())));
  add_memory("embedding_backward", {dout, ids}, 2 * rows);
}
void SimBackend::do_scatter_rows(Tensor, Tensor x, Tensor rows) {
  add_memory("scatter_rows", {x, x, rows});
}
void SimBackend::do_read_logits(Tensor values, Tensor ids, Tensor log_sum, Tensor chosen,
                                Tensor logits, Tensor targets, std::int64_t) {
  add_memory("read_logits", {logits, values, ids, log_sum, chosen, targets});
}
void SimBackend::do_cross_entropy(Tensor losses, Tensor logits, Tensor targets,
                                  const CrossEntropyOptions& options) {
  add_memory("cross_entropy", {logits, options.gradient_scale != 0 ? logits : Tensor(), logits,
                               losses, targets, options.weights, options.smallest_losses});
}
void SimBackend::do_cross_entropy_partial(Tensor partial, Tensor logits, Tensor targets,
                                          std::int64_t) {
  add_memory("cross_entropy_partial", {logits, partial, targets});
}
void SimBackend::do_cross_entropy_merged(Tensor losses, Tensor logits, Tensor targets,
                                         Tensor partials, std::int64_t,
                                         const CrossEntropyOptions& options) {
  const bool writes = options.gradient_scale != 0;
  add_memory("cross_entropy_merged", {writes ? logits : losses, writes ? logits : Tensor(), losses,
                                      targets, partials, options.weights, options.smallest_losses});
}

// ---- preferences

void SimBackend::do_range_sums(Tensor sums, Tensor x, Tensor ranges) {
  add_memory("range_sums", {sums, x, ranges});
}
void SimBackend::do_preference_loss(Tensor weights, Tensor totals, Tensor sums, Tensor reference,
                                    Tensor ranges, const PreferenceOptions&) {
  add_memory("preference_loss", {weights, totals, sums, reference, ranges});
}

// ---- reductions and the optimizer

void SimBackend::do_sum(Tensor out, Tensor x) { add_memory("sum", {x, out}); }
void SimBackend::do_squared_norm(Tensor out, Tensor x) { add_memory("squared_norm", {x, out}); }
void SimBackend::do_clip_scale(Tensor scale, Tensor squared_norm, const ClipOptions&) {
  add_memory("clip_scale", {scale, squared_norm});
}
void SimBackend::do_adamw(Tensor weight, Tensor master, Tensor moment1, Tensor moment2,
                          Tensor gradient, Tensor, const AdamWOptions&) {
  const bool copied = master.data() != weight.data();
  add_memory("adamw", {weight, copied ? master : weight, copied ? master : Tensor(), moment1,
                       moment1, moment2, moment2, gradient});
}
void SimBackend::do_momentum(Tensor direction, Tensor moment, Tensor gradient, Tensor,
                             const MomentumOptions&) {
  add_memory("momentum", {moment, moment, gradient, direction});
}
void SimBackend::do_divide_by_norms(Tensor x, Tensor squared_norms, double) {
  add_memory("divide_by_norms", {x, x, squared_norms});
}
void SimBackend::do_descend(Tensor weight, Tensor master, Tensor direction, Tensor, double,
                            double) {
  const bool copied = master.data() != weight.data();
  add_memory("descend", {weight, copied ? master : weight, copied ? master : Tensor(), direction});
}
void SimBackend::do_moving_average(Tensor average, Tensor x, double, Tensor) {
  add_memory("moving_average", {average, average, x});
}

}  // namespace kintsugi
