#include "backend/checks/checks.h"

namespace kintsugi {

// x (tokens, width) is read from or added to the rows of a table.
void Checks::embedding(const Tensor& x, const Tensor& ids, const Tensor& table, DType dtype) const {
  matrix(x);
  list(ids, x.extent(0), DType::I32);
  shaped(table, {table.extent(0), x.extent(1)}, dtype);
}

void Checks::embedding_forward(Tensor out, Tensor ids, Tensor table, bool, std::int64_t) const {
  embedding(out, ids, table, out.dtype());
}

void Checks::embedding_backward(Tensor dtable, Tensor ids, Tensor dout, std::int64_t) const {
  embedding(dout, ids, dtable, accumulator_of(dout.dtype()));
}

void Checks::scatter_rows(Tensor destination, Tensor x, Tensor rows) const {
  ranked(x, 3, 3);
  shaped(destination, {destination.extent(0), x.extent(1), x.extent(2)}, x.dtype());
  list(rows, x.extent(0), DType::I32);
}

void Checks::read_logits(Tensor values, Tensor ids, Tensor log_sum, Tensor chosen, Tensor logits,
                         Tensor targets, std::int64_t) const {
  matrix(logits);
  shaped(values, {logits.extent(0), values.extent(1)}, accumulator_of(logits.dtype()));
  shaped(ids, values.shape(), DType::I32);
  KINTSUGI_CHECK(values.extent(1) <= logits.extent(1), "{}: the {} largest of {}", operation_,
                 values.extent(1), logits.extent(1));
  statistics(logits, log_sum);
  if (targets) losses_of(logits, chosen, targets, {});
}

void Checks::losses_of(const Tensor& logits, const Tensor& losses, const Tensor& targets,
                       const CrossEntropyOptions& o) const {
  matrix(logits);
  statistics(logits, losses);
  list(targets, logits.extent(0), DType::I32);
  for (const Tensor* one : {&o.weights, &o.squared_log_z, &o.smallest_losses})
    if (*one) statistics(logits, *one);
}

void Checks::cross_entropy(Tensor losses, Tensor logits, Tensor targets,
                           const CrossEntropyOptions& options) const {
  losses_of(logits, losses, targets, options);
}

void Checks::cross_entropy_partial(Tensor partial, Tensor logits, Tensor targets,
                                   std::int64_t) const {
  matrix(logits);
  dense(partial, {logits.extent(0), 3}, accumulator_of(logits.dtype()));
  list(targets, logits.extent(0), DType::I32);
}

void Checks::cross_entropy_merged(Tensor losses, Tensor logits, Tensor targets, Tensor partials,
                                  std::int64_t, const CrossEntropyOptions& options) const {
  losses_of(logits, losses, targets, options);
  dense(partials, {partials.extent(0), logits.extent(0), 3}, losses.dtype());
}

void Checks::range_sums(Tensor sums, Tensor x, Tensor ranges) const {
  accumulator(sums);
  contiguous(sums);
  list(x, x.elements(), sums.dtype());
  dense(ranges, {sums.elements(), 2}, DType::I32);
}

void Checks::preference_loss(Tensor weights, Tensor totals, Tensor sums, Tensor reference,
                             Tensor ranges, const PreferenceOptions&) const {
  range_sums(sums, weights, ranges);
  list(reference, sums.elements(), sums.dtype());
  list(totals, 4, sums.dtype());
  KINTSUGI_CHECK(sums.elements() % 2 == 0, "{}: {} sequences are no pairs", operation_,
                 sums.elements());
}

}  // namespace kintsugi
