// The element-wise parts of a Muon update.
#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"
#include "core/philox.h"

namespace kintsugi::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 4;  // elements per thread; shorter tensors and tails take one

template <class A>
struct MomentumRates {
  A momentum, rest;
  bool nesterov;
  std::uint64_t rounding_key, first_element;
};

template <class M, class A>
__device__ inline M rounded(A value, const MomentumRates<A>& r, std::int64_t i) {
  if constexpr (std::is_same_v<M, Bf16> && std::is_same_v<A, float>) {
    if (r.rounding_key != 0) {
      const std::uint32_t bits =
          rounding_bits(r.rounding_key, r.first_element + static_cast<std::uint64_t>(i));
      return bf16_of_bits(round_stochastically(__float_as_uint(value), bits));
    }
  }
  return down<M>(value);
}

// D is the type of the direction, M of the moment, A of the gradient. direction may be nullptr.
template <class D, class M, class A, int N>
__global__ void __launch_bounds__(kThreads)
    momentum_kernel(D* direction, M* moment, const A* gradient, const A* gradient_scale,
                    MomentumRates<A> r, std::int64_t first, std::int64_t packs) {
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (pack >= packs) return;
  const std::int64_t at = first + pack * N;
  const A scale = gradient_scale[0];
  Pack<M, N> m = load<N>(moment + at);
  const Pack<A, N> g = load<N>(gradient + at);
  const bool skipped = !isfinite(scale);
  Pack<D, N> d;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const A grad = g.v[k] * scale;
    const A next = r.momentum * up(m.v[k]) + r.rest * grad;
    m.v[k] = rounded<M>(next, r, at + k);
    d.v[k] = down<D>(skipped ? A(0) : r.nesterov ? r.momentum * next + r.rest * grad : next);
  }
  if (!skipped) store(moment + at, m);
  if (direction != nullptr) store(direction + at, d);
}

template <class D, class M, class A>
void launch_momentum(const Context& context, const Tensor& direction, const Tensor& moment,
                     const Tensor& gradient, const Tensor& scale, const MomentumOptions& o) {
  const MomentumRates<A> rates{.momentum = static_cast<A>(o.momentum),
                               .rest = static_cast<A>(1.0 - o.momentum),
                               .nesterov = o.nesterov,
                               .rounding_key = o.rounding_key,
                               .first_element = static_cast<std::uint64_t>(o.first_element)};
  D* const d = data_of<D>(direction);
  M* const m = data_of<M>(moment);
  const A* const g = data_of<A>(gradient);
  const std::int64_t n = moment.elements();
  const bool aligned = aligned16(m) && aligned16(g) && (d == nullptr || aligned16(d));
  const std::int64_t packs = aligned ? n / kWidth : 0, rest = n - packs * kWidth;
  if (packs > 0) {
    launch_kernel(context.stream, momentum_kernel<D, M, A, kWidth>, flat_blocks(packs), kThreads, 0,
                  d, m, g, data_of<A>(scale), rates, 0, packs);
  }
  if (rest > 0) {
    launch_kernel(context.stream, momentum_kernel<D, M, A, 1>, flat_blocks(rest), kThreads, 0, d, m,
                  g, data_of<A>(scale), rates, packs * kWidth, rest);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    divide_kernel(T* x, const Acc<T>* squared_norms, Acc<T> eps, std::int64_t n) {
  const Acc<T> norm = max(sqrt(squared_norms[blockIdx.y]), eps);
  T* const values = x + static_cast<std::int64_t>(blockIdx.y) * n;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n;
       i += step)
    values[i] = down<T>(up(values[i]) / norm);
}

// W is the type of the weights, D of the direction. weight is nullptr if master is the weight.
template <class W, class D, int N>
__global__ void __launch_bounds__(kThreads)
    descend_kernel(W* weight, Acc<W>* master, const D* direction, const Acc<W>* gradient_scale,
                   Acc<W> shrink, Acc<W> rate, std::int64_t first, std::int64_t packs) {
  using A = Acc<W>;
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (pack >= packs) return;
  const std::int64_t at = first + pack * N;
  const A scale = gradient_scale[0];
  Pack<A, N> precise = load<N>(master + at);
  const Pack<D, N> d = load<N>(direction + at);
  if (!isfinite(scale)) return;  // after the loads, so that they do not wait for it
  Pack<W, N> low;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    precise.v[k] = shrink * precise.v[k] - rate * static_cast<A>(up(d.v[k]));
    low.v[k] = down<W>(precise.v[k]);
  }
  store(master + at, precise);
  if (weight != nullptr) store(weight + at, low);
}

template <class W, class D>
void launch_descend(const Context& context, const Tensor& weight, const Tensor& master,
                    const Tensor& direction, const Tensor& scale, double shrink, double rate) {
  using A = Acc<W>;
  W* const w = master.data() == weight.data() ? nullptr : data_of<W>(weight);
  A* const precise = data_of<A>(master);
  const D* const d = data_of<D>(direction);
  const std::int64_t n = weight.elements();
  const bool aligned = aligned16(precise) && aligned16(d) && (w == nullptr || aligned16(w));
  const std::int64_t packs = aligned ? n / kWidth : 0, rest = n - packs * kWidth;
  const auto keep = static_cast<A>(shrink), step = static_cast<A>(rate);
  if (packs > 0) {
    launch_kernel(context.stream, descend_kernel<W, D, kWidth>, flat_blocks(packs), kThreads, 0, w,
                  precise, d, data_of<A>(scale), keep, step, 0, packs);
  }
  if (rest > 0) {
    launch_kernel(context.stream, descend_kernel<W, D, 1>, flat_blocks(rest), kThreads, 0, w,
                  precise, d, data_of<A>(scale), keep, step, packs * kWidth, rest);
  }
}

}  // namespace

void momentum(const Context& context, Tensor direction, Tensor moment, Tensor gradient,
              Tensor gradient_scale, const MomentumOptions& options) {
  const std::int64_t n = moment.elements();
  if (n == 0) return;
  visit_device_float(direction ? direction.dtype() : gradient.dtype(), [&]<class D>() {
    if (gradient.dtype() == DType::F64)
      launch_momentum<D, double, double>(context, direction, moment, gradient, gradient_scale,
                                         options);
    else if (moment.dtype() == DType::BF16)
      launch_momentum<D, Bf16, float>(context, direction, moment, gradient, gradient_scale,
                                      options);
    else
      launch_momentum<D, float, float>(context, direction, moment, gradient, gradient_scale,
                                       options);
  });
}

void divide_by_norms(const Context& context, Tensor x, Tensor squared_norms, double eps) {
  if (x.elements() == 0) return;
  const std::int64_t n = x.elements() / x.extent(0);
  const dim3 grid(static_cast<unsigned>(std::min<std::int64_t>(ceil_div<std::int64_t>(n, kThreads),
                                                               8 * context.multiprocessors)),
                  static_cast<unsigned>(x.extent(0)));
  visit_device_float(x.dtype(), [&]<class T>() {
    launch_kernel(context.stream, divide_kernel<T>, grid, kThreads, 0, data_of<T>(x),
                  data_of<Acc<T>>(squared_norms), static_cast<Acc<T>>(eps), n);
  });
}

void descend(const Context& context, Tensor weight, Tensor master, Tensor direction,
             Tensor gradient_scale, double shrink, double rate) {
  const std::int64_t n = weight.elements();
  if (n == 0) return;
  visit_device_float(weight.dtype(), [&]<class W>() {
    visit_device_float(direction.dtype(), [&]<class D>() {
      launch_descend<W, D>(context, weight, master, direction, gradient_scale, shrink, rate);
    });
  });
}

}  // namespace kintsugi::gpu
