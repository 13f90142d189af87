// Sums over whole tensors in a fixed order (a fixed number of blocks, each summed in double, then
// the sums of the blocks), and the clipping factor computed from them.
#include <algorithm>
#include <cmath>

#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"

namespace kintsugi::gpu {
namespace {

constexpr int kThreads = 512;
constexpr int kAhead = 4;  // loads in flight per thread

template <bool kSquare, class T>
__device__ inline Acc<T> term(T x) {
  return kSquare ? up(x) * up(x) : up(x);
}

// The first block also sums the elements after the last full pack.
template <class T, int N, bool kSquare>
__global__ void __launch_bounds__(kThreads)
    partial_kernel(double* partials, const T* x, std::int64_t n) {
  KINTSUGI_SHARED(double[32], shared);
  const std::int64_t packs = n / N, step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  double total = 0;
  const auto add = [&](const Pack<T, N>& pack) {
    Acc<T> sum = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) sum += term<kSquare>(pack.v[k]);
    total += sum;
  };
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; i + (kAhead - 1) * step < packs; i += kAhead * step) {
    Pack<T, N> pack[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) pack[a] = load<N>(x + (i + a * step) * N);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) add(pack[a]);
  }
  for (; i < packs; i += step) add(load<N>(x + i * N));
  const std::int64_t rest = packs * N + threadIdx.x;
  if (blockIdx.x == 0 && rest < n) total += term<kSquare>(x[rest]);
  total = block_sum(total, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

template <class A>
__global__ void __launch_bounds__(kThreads)
    total_kernel(A* out, const double* partials, int count) {
  KINTSUGI_SHARED(double[32], shared);
  double total = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) total += partials[i];
  total = block_sum(total, shared);
  if (threadIdx.x == 0) out[0] += static_cast<A>(total);
}

template <class T, int N, bool kSquare>
void launch(const Context& context, Acc<T>* out, const T* x, std::int64_t n) {
  const std::int64_t needed = ceil_div<std::int64_t>(n, N * kThreads * kAhead);
  const int blocks = static_cast<int>(
      std::min<std::int64_t>(std::max<std::int64_t>(needed, 1), 4 * context.multiprocessors));
  double* partials =
      context.workspace.get<double>(static_cast<std::size_t>(blocks), context.stream);
  launch_kernel(context.stream, partial_kernel<T, N, kSquare>, blocks, kThreads, 0, partials, x, n);
  launch_kernel(context.stream, total_kernel<Acc<T>>, 1, kThreads, 0, out, partials, blocks);
}

template <bool kSquare>
void reduce(const Context& context, const Tensor& out, const Tensor& x) {
  if (x.elements() == 0) return;
  visit_device_float(x.dtype(), [&]<class T>() {
    Acc<T>* to = data_of<Acc<T>>(out);
    const T* from = data_of<T>(x);
    if (aligned16(from))
      launch<T, kVecSize<T>, kSquare>(context, to, from, x.elements());
    else
      launch<T, 1, kSquare>(context, to, from, x.elements());
  });
}

// loss may be nullptr.
template <class A>
__global__ void clip_kernel(A* scale, const A* squared_norm, const A* loss, double clip,
                            double unscale, double norm_limit, double loss_limit) {
  const double norm = unscale * sqrt(static_cast<double>(squared_norm[0]));
  double factor = clip > 0 && norm > clip ? unscale * clip / norm : unscale;
  const bool outlier =
      norm > norm_limit || (loss != nullptr && static_cast<double>(loss[0]) > loss_limit);
  if (!isfinite(norm) || outlier) factor = nan("");
  scale[0] = static_cast<A>(factor);
}

template <class A>
void launch_clip(const Context& context, const Tensor& scale, const Tensor& squared_norm,
                 const ClipOptions& options) {
  launch_kernel(context.stream, clip_kernel<A>, 1, 1, 0, data_of<A>(scale),
                data_of<A>(squared_norm), options.loss ? data_of<A>(options.loss) : nullptr,
                options.clip, options.unscale, options.norm_limit, options.loss_limit);
}

}  // namespace

void sum(const Context& context, Tensor out, Tensor x) { reduce<false>(context, out, x); }
void squared_norm(const Context& context, Tensor out, Tensor x) { reduce<true>(context, out, x); }

void clip_scale(const Context& context, Tensor scale, Tensor squared_norm,
                const ClipOptions& options) {
  if (scale.dtype() == DType::F64)
    launch_clip<double>(context, scale, squared_norm, options);
  else
    launch_clip<float>(context, scale, squared_norm, options);
}

}  // namespace kintsugi::gpu
