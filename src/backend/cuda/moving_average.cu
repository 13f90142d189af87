// The exponential moving average of the weights.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"

namespace kintsugi::cuda {
namespace {

template <class A, int N>
__global__ void __launch_bounds__(256)
    moving_average_kernel(A* average, const A* x, A rate, const A* scale, std::int64_t packs) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (at >= packs * N) return;
  Pack<A, N> to = load<N>(average + at);
  const Pack<A, N> from = load<N>(x + at);
  if (!isfinite(scale[0])) return;  // after the loads, so that they do not wait for it
#pragma unroll
  for (int k = 0; k < N; ++k) to.v[k] += rate * (from.v[k] - to.v[k]);
  store(average + at, to);
}

template <class A, int N>
void launch(const Context& context, A* average, const A* x, A rate, const A* scale,
            std::int64_t packs) {
  if (packs == 0) return;
  moving_average_kernel<A, N>
      <<<flat_blocks(packs), 256, 0, context.stream>>>(average, x, rate, scale, packs);
  KINTSUGI_LAUNCHED();
}

template <class A>
void average_of(const Context& context, const Tensor& average, const Tensor& x, double rate,
                const Tensor& scale) {
  constexpr int N = 16 / sizeof(A);
  A* const to = data_of<A>(average);
  const A *const from = data_of<A>(x), *const factor = data_of<A>(scale);
  const std::int64_t n = average.elements();
  const std::int64_t packs = aligned16(to) && aligned16(from) ? n / N : 0;
  launch<A, N>(context, to, from, static_cast<A>(rate), factor, packs);
  launch<A, 1>(context, to + packs * N, from + packs * N, static_cast<A>(rate), factor,
               n - packs * N);
}

}  // namespace

void moving_average(const Context& context, Tensor average, Tensor x, double rate, Tensor scale) {
  KINTSUGI_CHECK(average.elements() == x.elements() && average.dtype() == x.dtype() &&
                     scale.dtype() == x.dtype() && average.contiguous() && x.contiguous(),
                 "moving_average: {} of {}", to_string(average.shape()), to_string(x.shape()));
  if (average.elements() == 0) return;
  if (average.dtype() == DType::F64)
    average_of<double>(context, average, x, rate, scale);
  else
    average_of<float>(context, average, x, rate, scale);
}

}  // namespace kintsugi::cuda
