#include <algorithm>

#include "backend/checks/checks.h"

namespace kintsugi {
namespace {

std::int64_t experts_of(const ExpertRows& rows) { return rows.offsets.elements() - 1; }

}  // namespace

// logits (tokens, experts), ids (tokens, choices)
void Checks::choices(const Tensor& ids, const Tensor& logits) const {
  matrix(logits);
  accumulator(logits);
  contiguous(logits);
  dense(ids, {logits.extent(0), ids.extent(1)}, DType::I32);
}

void Checks::routing(const Tensor& ids, const Tensor& weights, const Tensor& logits,
                     const RouteOptions& o) const {
  choices(ids, logits);
  dense(weights, ids.shape(), logits.dtype());
  const std::int64_t experts = logits.extent(1);
  KINTSUGI_CHECK(o.groups > 0 && experts % o.groups == 0 && o.top_groups <= o.groups &&
                     ids.extent(1) <= experts / o.groups * o.top_groups,
                 "{}: {} choices of {} experts in {} of {} groups", operation_, ids.extent(1),
                 experts, o.top_groups, o.groups);
}

// sums (sequences, experts) of logits (tokens, experts)
void Checks::sums_of_sequences(const Tensor& sums, const Tensor& logits) const {
  const std::int64_t sequences = sums.extent(0);
  dense(sums, {sequences, logits.extent(1)}, logits.dtype());
  KINTSUGI_CHECK(sequences > 0 && logits.extent(0) % sequences == 0, "{}: {} tokens, {} sequences",
                 operation_, logits.extent(0), sequences);
}

void Checks::expert_rows(const ExpertRows& rows) const {
  list(rows.rows, rows.rows.elements(), DType::I32);
  list(rows.offsets, rows.offsets.elements(), DType::I32);
  KINTSUGI_CHECK(experts_of(rows) > 0 && rows.choices > 0, "{}: {} experts, {} choices", operation_,
                 experts_of(rows), rows.choices);
}

// x has all the rows or, with `tokens`, a row per token.
void Checks::with_rows(const Tensor& x, std::int64_t width, DType dtype, const ExpertRows& rows,
                       bool tokens) const {
  shaped(x, {x.extent(0), width}, dtype);
  KINTSUGI_CHECK(tokens || x.extent(0) >= rows.rows.elements(), "{}: {} for {} rows", operation_,
                 to_string(x.shape()), rows.rows.elements());
}

void Checks::expert_swiglu(const Tensor& out, const Tensor& gate_up, const Tensor& weights,
                           const ExpertRows& rows) const {
  expert_rows(rows);
  with_rows(out, out.extent(1), out.dtype(), rows);
  swiglu_forward(out, gate_up, {});
  dense(weights, {weights.extent(0), rows.choices}, accumulator_of(out.dtype()));
}

void Checks::route(Tensor ids, Tensor weights, Tensor logits, Tensor bias,
                   const RouteOptions& options) const {
  routing(ids, weights, logits, options);
  if (bias) list(bias, logits.extent(1), logits.dtype());
}

void Checks::route_backward(Tensor dlogits, Tensor dweights, Tensor ids, Tensor logits,
                            const RouteOptions& options, const RouteLosses& losses) const {
  routing(ids, dweights, logits, options);
  matrix(dlogits);
  contiguous(dlogits);
  shaped(logits, dlogits.shape(), accumulator_of(dlogits.dtype()));
  if (losses.balance) sums_of_sequences(losses.balance, logits);
}

void Checks::route_statistics(Tensor counts, Tensor probabilities, Tensor squared_log_z, Tensor ids,
                              Tensor logits, const RouteOptions&) const {
  choices(ids, logits);
  sums_of_sequences(counts, logits);
  sums_of_sequences(probabilities, logits);
  like(counts, probabilities);
  if (squared_log_z) list(squared_log_z, 1, logits.dtype());
}

void Checks::balance_loss(Tensor loss, Tensor gradient, Tensor counts, Tensor probabilities, double,
                          double) const {
  matrix(counts);
  accumulator(counts);
  for (const Tensor* one : {&counts, &gradient, &probabilities})
    dense(*one, counts.shape(), counts.dtype());
  if (loss) list(loss, 1, counts.dtype());
}

void Checks::order_choices(ExpertRows rows, Tensor positions, Tensor ids, std::int64_t) const {
  expert_rows(rows);
  dense(ids, {ids.extent(0), rows.choices}, DType::I32);
  dense(positions, ids.shape(), DType::I32);
  // A token chooses an expert at most once.
  KINTSUGI_CHECK(rows.rows.elements() >= ids.extent(0) * std::min(rows.choices, experts_of(rows)),
                 "{}: choices {} of {} experts for {} rows", operation_, to_string(ids.shape()),
                 experts_of(rows), rows.rows.elements());
}

void Checks::limit_choices(Tensor kept, Tensor dropped, Tensor ids,
                           const ChoiceLimit& limit) const {
  dense(ids, {ids.extent(0), ids.extent(1)}, DType::I32);
  dense(kept, ids.shape(), DType::I32);
  if (dropped) list(dropped, 1, accumulator_of(dropped.dtype()));
  KINTSUGI_CHECK(limit.length > 0 && ids.extent(0) % limit.length == 0, "{}: {} in sequences of {}",
                 operation_, to_string(ids.shape()), limit.length);
}

void Checks::find_visits(Tensor visits, Tensor ids, const ExpertOwners& owners) const {
  dense(ids, {ids.extent(0), ids.extent(1)}, DType::I32);
  dense(visits, {ids.extent(0), visits.extent(1)}, DType::I32);
  KINTSUGI_CHECK(owners.stride > 0, "{}: a stride of {} experts", operation_, owners.stride);
}

void Checks::gather_rows(Tensor y, Tensor x, const ExpertRows& rows) const {
  expert_rows(rows);
  shaped(x, {x.extent(0), x.extent(1)}, x.dtype());
  shaped(y, {y.extent(0), x.extent(1)}, x.dtype());  // fewer rows than `rows` if they are not used
}

void Checks::grouped_matmul(Tensor c, Tensor a, Tensor b, const ExpertRows& rows,
                            const GroupedOptions& o) const {
  expert_rows(rows);
  matrix(a);
  const std::int64_t k = a.extent(1), n = b.extent(o.transpose_b ? 1 : 2);
  with_rows(a, k, a.dtype(), rows, o.tokens_a);
  shaped(b, {experts_of(rows), o.transpose_b ? n : k, o.transpose_b ? k : n}, a.dtype());
  with_rows(c, n, a.dtype(), rows);
  KINTSUGI_CHECK(!o.tokens_b, "{} {}: b has no rows", operation_, to_string(c.shape()));
}

void Checks::grouped_matmul_fp8(Tensor c, Quantized a, Quantized b, const ExpertRows& rows,
                                const GroupedOptions& o) const {
  expert_rows(rows);
  const std::int64_t k = a.columns(), n = b.rows() / experts_of(rows);
  number(c);
  fp8(a, a.rows(), k);
  fp8(b, experts_of(rows) * n, k);
  with_rows(a.values, k, DType::F8, rows, o.tokens_a);
  with_rows(c, n, c.dtype(), rows);
  KINTSUGI_CHECK(n % kFp8Multiple == 0 && k % kFp8Multiple == 0, "{} {} x {}: not multiples of {}",
                 operation_, n, k, kFp8Multiple);
  KINTSUGI_CHECK(a.scales.elements() == a.rows() && b.scales.elements() == b.rows(),
                 "{}: an operand has one scale", operation_);
  KINTSUGI_CHECK(!o.transpose_b && !o.tokens_b && o.scale == 1, "{}: options that it does not take",
                 operation_);
}

void Checks::grouped_weight_gradient(Tensor dw, Tensor a, Tensor b, const ExpertRows& rows,
                                     const GroupedOptions& o) const {
  expert_rows(rows);
  matrix(a);
  with_rows(a, a.extent(1), a.dtype(), rows, o.tokens_a);
  with_rows(b, b.extent(1), a.dtype(), rows, o.tokens_b);
  shaped(dw, {experts_of(rows), a.extent(1), b.extent(1)},
         dw.dtype() == a.dtype() ? a.dtype() : accumulator_of(a.dtype()));
  KINTSUGI_CHECK(!o.transpose_b && o.scale == 1, "{} {} is not transposed or scaled", operation_,
                 to_string(dw.shape()));
}

void Checks::expert_swiglu_forward(Tensor out, Tensor gate_up, Tensor weights,
                                   const ExpertRows& rows) const {
  expert_swiglu(out, gate_up, weights, rows);
}

void Checks::expert_swiglu_backward(Tensor dgate_up, Tensor dweights, Tensor dout, Tensor gate_up,
                                    Tensor weights, const ExpertRows& rows) const {
  expert_swiglu(dout, gate_up, weights, rows);
  expert_swiglu(dout, dgate_up, dweights, rows);
  like(weights, dweights);
}

void Checks::combine_rows(Tensor y, Tensor x, Tensor positions, Tensor residual) const {
  matrix(y);
  shaped(x, {x.extent(0), y.extent(1)}, y.dtype());
  dense(positions, {y.extent(0), positions.extent(1)}, DType::I32);
  if (residual) like(y, residual);
}

}  // namespace kintsugi
