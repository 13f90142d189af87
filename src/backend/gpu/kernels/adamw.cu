// AdamW with decoupled weight decay; reads and writes every operand once.
#include <cmath>

#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"
#include "core/philox.h"

namespace kintsugi::gpu {
namespace {

template <class A>
struct Rates {
  A beta1, beta2, eps;
  A shrink;      // 1 - lr * weight_decay
  A rate;        // lr / (1 - beta1^step)
  A correction;  // 1 / sqrt(1 - beta2^step)
  std::uint64_t rounding_key, first_element;
};

template <class A>
Rates<A> rates_of(const AdamWOptions& o) {
  const double step = static_cast<double>(o.step);
  return {.beta1 = static_cast<A>(o.beta1),
          .beta2 = static_cast<A>(o.beta2),
          .eps = static_cast<A>(o.eps),
          .shrink = static_cast<A>(1.0 - o.lr * o.weight_decay),
          .rate = static_cast<A>(o.lr / (1.0 - std::pow(o.beta1, step))),
          .correction = static_cast<A>(1.0 / std::sqrt(1.0 - std::pow(o.beta2, step))),
          .rounding_key = o.rounding_key,
          .first_element = static_cast<std::uint64_t>(o.first_element)};
}

__device__ inline Bf16 stochastically_rounded(float value, std::uint32_t bits) {
  return bf16_of_bits(round_stochastically(__float_as_uint(value), bits));
}

// W is the type of the weights, M of the moments. weight is nullptr if master is the weight itself.
template <class W, class M, int N, bool kStochastic>
__global__ void __launch_bounds__(256)
    adamw_kernel(W* weight, Acc<W>* master, M* moment1, M* moment2, const Acc<W>* gradient,
                 const Acc<W>* gradient_scale, Rates<Acc<W>> r, std::int64_t packs) {
  using A = Acc<W>;
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (at >= packs * N) return;
  const A scale = gradient_scale[0];
  const Pack<A, N> g = load<N>(gradient + at);
  Pack<M, N> m = load<N>(moment1 + at), v = load<N>(moment2 + at);
  Pack<A, N> precise = load<N>(master + at);
  if (!isfinite(scale)) return;  // after the loads, so that they do not wait for it
  Pack<W, N> rounded;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const A grad = g.v[k] * scale;
    const A m1 = r.beta1 * up(m.v[k]) + (A(1) - r.beta1) * grad;
    const A m2 = r.beta2 * up(v.v[k]) + (A(1) - r.beta2) * grad * grad;
    const A updated = precise.v[k] * r.shrink - r.rate * m1 / (sqrt(m2) * r.correction + r.eps);
    if constexpr (kStochastic) {
      const std::uint32_t bits =
          rounding_bits(r.rounding_key, r.first_element + static_cast<std::uint64_t>(at + k));
      m.v[k] = stochastically_rounded(m1, bits);
      v.v[k] = stochastically_rounded(m2, bits >> 16);
    } else {
      m.v[k] = down<M>(m1);
      v.v[k] = down<M>(m2);
    }
    precise.v[k] = updated;
    rounded.v[k] = down<W>(updated);
  }
  store(moment1 + at, m);
  store(moment2 + at, v);
  store(master + at, precise);
  if (weight != nullptr) store(weight + at, rounded);
}

template <class W>
struct Buffers {
  W* weight;
  Acc<W>*master, *gradient, *gradient_scale;
};

template <class W, class M, int N>
void launch(const Context& context, const Buffers<W>& b, M* moment1, M* moment2, std::int64_t first,
            std::int64_t packs, const Rates<Acc<W>>& rates) {
  if (packs == 0) return;
  Rates<Acc<W>> local_rates = rates;
  local_rates.first_element += static_cast<std::uint64_t>(first);
  constexpr bool kCanRound = std::is_same_v<M, Bf16> && std::is_same_v<Acc<W>, float>;
  const auto kernel = kCanRound && rates.rounding_key != 0 ? adamw_kernel<W, M, N, kCanRound>
                                                           : adamw_kernel<W, M, N, false>;
  launch_kernel(context.stream, kernel, flat_blocks(packs), 256, 0,
                b.weight == nullptr ? nullptr : b.weight + first, b.master + first, moment1 + first,
                moment2 + first, b.gradient + first, b.gradient_scale, local_rates, packs);
}

template <class W, class M>
void step(const Context& context, const Buffers<W>& b, const Tensor& moment1, const Tensor& moment2,
          const AdamWOptions& options) {
  // The gradient's accesses have 16 bytes, those of 16-bit operands 8.
  constexpr int N = 16 / sizeof(Acc<W>);
  M *m = data_of<M>(moment1), *v = data_of<M>(moment2);
  const Rates<Acc<W>> rates = rates_of<Acc<W>>(options);
  const std::int64_t n = moment1.elements();
  const bool aligned = (b.weight == nullptr || aligned16(b.weight)) && aligned16(b.master) &&
                       aligned16(b.gradient) && aligned16(m) && aligned16(v);
  const std::int64_t packs = aligned ? n / N : 0;
  launch<W, M, N>(context, b, m, v, 0, packs, rates);
  launch<W, M, 1>(context, b, m, v, packs * N, n - packs * N, rates);
}

}  // namespace

void adamw(const Context& context, Tensor weight, Tensor master, Tensor moment1, Tensor moment2,
           Tensor gradient, Tensor gradient_scale, const AdamWOptions& options) {
  const std::int64_t n = weight.elements();
  if (n == 0) return;
  visit_device_float(weight.dtype(), [&]<class W>() {
    const Buffers<W> buffers = {
        .weight = master.data() == weight.data() ? nullptr : data_of<W>(weight),
        .master = data_of<Acc<W>>(master),
        .gradient = data_of<Acc<W>>(gradient),
        .gradient_scale = data_of<Acc<W>>(gradient_scale)};
    if (moment1.dtype() == DType::BF16)
      step<W, Bf16>(context, buffers, moment1, moment2, options);
    else
      step<W, Acc<W>>(context, buffers, moment1, moment2, options);
  });
}

}  // namespace kintsugi::gpu
