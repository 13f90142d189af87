// Rotary position embedding: rotates pairs of elements of a head, (i, i + dim / 2) or (2i, 2i + 1).
#include "backend/cpu/cpu_backend_impl.h"

namespace kintsugi {
namespace {

// Rotates the pairs (low[i * kStep], high[i * kStep]).
template <int kStep, class T, class A>
void rotate(T* low, T* high, const A* cosine, const A* sine, A direction, std::int64_t pairs) {
#pragma omp simd
  for (std::int64_t i = 0; i < pairs; ++i) {
    const A a = static_cast<A>(low[i * kStep]), b = static_cast<A>(high[i * kStep]),
            s = direction * sine[i];
    low[i * kStep] = static_cast<T>(a * cosine[i] - b * s);
    high[i * kStep] = static_cast<T>(b * cosine[i] + a * s);
  }
}

}  // namespace

void CpuBackend::do_rope(Tensor x, Tensor table, Tensor positions, bool inverse, RopePairs pairs) {
  const std::int64_t tokens = x.extent(0), heads = x.extent(1), dim = x.extent(2), half = dim / 2;
  visit_float(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const std::int32_t* position_of = positions.as<std::int32_t>();
    const A direction = inverse ? A(-1) : A(1);
    pool_.run_ranges(tokens, 16, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t token = begin; token < end; ++token) {
        const A* cosine = table.as<A>() + position_of[token] * dim;
        const A* sine = cosine + half;
        for (std::int64_t head = 0; head < heads; ++head) {
          T* row = x.as<T>() + token * x.stride(0) + head * x.stride(1);
          if (pairs == RopePairs::Halves)
            rotate<1>(row, row + half, cosine, sine, direction, half);
          else
            rotate<2>(row, row + 1, cosine, sine, direction, half);
        }
      }
    });
  });
}

void CpuBackend::do_rope_backward(Tensor x, Tensor table, Tensor positions, std::int64_t heads,
                                  Maxima maxima) {
  const std::int64_t dim = table.extent(1);
  do_rope(x.part(1, 0, heads * dim).split_last(dim), table, positions, true, RopePairs::Halves);
  do_find_maxima(maxima, x);
}

void CpuBackend::do_rope_store(Tensor keys, Tensor values, Tensor q, Tensor k, Tensor v,
                               Tensor rows, Tensor table, Tensor positions) {
  if (table) {
    do_rope(q, table, positions, false, RopePairs::Halves);
    do_rope(k, table, positions, false, RopePairs::Halves);
  }
  do_scatter_rows(keys, k, rows);
  do_scatter_rows(values, v, rows);
}

}  // namespace kintsugi
