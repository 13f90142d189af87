// Merges attention over two sets of keys by their log-sum-exps.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/cpu_backend_impl.h"

namespace kintsugi {
namespace {

template <class T>
void merge_row(Accumulator<T>* out, Accumulator<T>& lse, const T* part, Accumulator<T> part_lse,
               std::int64_t dim) {
  using A = Accumulator<T>;
  if (part_lse == -std::numeric_limits<A>::infinity()) return;
  const A top = std::max(lse, part_lse);
  const A weight = std::exp(lse - top), part_weight = std::exp(part_lse - top);
  const A total = weight + part_weight;
  for (std::int64_t i = 0; i < dim; ++i)
    out[i] = (weight * out[i] + part_weight * static_cast<A>(part[i])) / total;
  lse = top + std::log(total);
}

}  // namespace

void CpuBackend::attention_merge(Tensor out, Tensor lse, Tensor part_out, Tensor part_lse) {
  const std::int64_t batch = out.extent(0), queries = out.extent(1), heads = out.extent(2);
  KINTSUGI_CHECK(part_out.shape() == out.shape() && lse.shape() == (Shape{batch, heads, queries}) &&
                     part_lse.shape() == lse.shape(),
                 "attention_merge: part {} with lse {}, out {} with lse {}",
                 to_string(part_out.shape()), to_string(part_lse.shape()), to_string(out.shape()),
                 to_string(lse.shape()));
  visit_float(part_out.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    pool_.run_ranges(batch * queries, 16, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t b = row / queries, i = row % queries;
        for (std::int64_t h = 0; h < heads; ++h)
          merge_row<T>(out.as<A>() + b * out.stride(0) + i * out.stride(1) + h * out.stride(2),
                       lse.as<A>()[b * lse.stride(0) + h * lse.stride(1) + i],
                       part_out.as<T>() + b * part_out.stride(0) + i * part_out.stride(1) +
                           h * part_out.stride(2),
                       part_lse.as<A>()[b * part_lse.stride(0) + h * part_lse.stride(1) + i],
                       out.extent(3));
      }
    });
  });
}

}  // namespace kintsugi
