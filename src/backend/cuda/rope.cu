// Rotary position embedding: rotates pairs of elements of a head, (i, i + dim / 2) or (2i, 2i + 1).
#include <algorithm>

#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace kintsugi::cuda {
namespace {

// One block per token: its heads use the same row of the table. Pair i is element i * step and the
// element `distance` after it; N pairs at a time if step is 1.
template <class T, int N>
__global__ void __launch_bounds__(256)
    rope_kernel(T* x, std::int64_t token_stride, std::int64_t head_stride, int heads, int half,
                int step, int distance, const Acc<T>* table, const std::int32_t* positions,
                Acc<T> direction) {
  using A = Acc<T>;
  allow_next();
  wait_for_previous();
  const std::int64_t token = blockIdx.x;
  const A* cosine = table + static_cast<std::int64_t>(positions[token]) * (2 * half);
  const A* sine = cosine + half;
  const int packs = half / N;
  for (int index = static_cast<int>(threadIdx.x); index < heads * packs;
       index += static_cast<int>(blockDim.x)) {
    const int head = index / packs, i = index % packs * N;
    T* low = x + token * token_stride + head * head_stride + i * step;
    T* high = low + distance;
    const Pack<T, N> a = load<N>(low), b = load<N>(high);
    const Pack<A, N> c = load<N>(cosine + i), s = load<N>(sine + i);
    Pack<T, N> out_low, out_high;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const A sine_k = direction * s.v[k];
      out_low.v[k] = down<T>(up(a.v[k]) * c.v[k] - up(b.v[k]) * sine_k);
      out_high.v[k] = down<T>(up(b.v[k]) * c.v[k] + up(a.v[k]) * sine_k);
    }
    store(low, out_low);
    store(high, out_high);
  }
}

template <class T, int N>
void launch(const Context& context, const Tensor& x, const Acc<T>* table,
            const std::int32_t* positions, bool inverse, RopePairs pairs) {
  const int heads = static_cast<int>(x.extent(1)), half = static_cast<int>(x.extent(2) / 2);
  const int threads = std::min(256, ceil_div(heads * (half / N), 32) * 32);
  launch_overlapped(context, rope_kernel<T, N>, static_cast<unsigned>(x.extent(0)), threads, 0,
                    data_of<T>(x), x.stride(0), x.stride(1), heads, half,
                    pairs == RopePairs::Halves ? 1 : 2, pairs == RopePairs::Halves ? half : 1,
                    table, positions, Acc<T>(inverse ? -1 : 1));
}

}  // namespace

void rope(const Context& context, Tensor x, Tensor table, Tensor positions, bool inverse,
          RopePairs pairs) {
  KINTSUGI_CHECK(x.rank() == 3 && table.rank() == 2 && table.contiguous() &&
                     table.extent(1) == x.extent(2) && x.extent(2) % 2 == 0 &&
                     positions.elements() == x.extent(0) && positions.contiguous(),
                 "rope: x {}, table {}", to_string(x.shape()), to_string(table.shape()));
  if (x.elements() == 0) return;
  visit_device_float(x.dtype(), [&]<class T>() {
    constexpr int N = kVecSize<T>;
    const Acc<T>* cosines_sines = data_of<Acc<T>>(table);
    const std::int32_t* at = data_of<std::int32_t>(positions);
    if (pairs == RopePairs::Halves && rows_of<T>(x).aligned() && aligned16(cosines_sines) &&
        x.extent(2) / 2 % N == 0)
      launch<T, N>(context, x, cosines_sines, at, inverse, pairs);
    else
      launch<T, 1>(context, x, cosines_sines, at, inverse, pairs);
  });
}

}  // namespace kintsugi::cuda
