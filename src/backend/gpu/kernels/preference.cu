// The loss of preference pairs (DPO): sums over sequences, one block each; the weights of a pair's
// tokens, one block per pair; and the totals over the pairs, in a fixed order, by one block.
#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"

namespace kintsugi::gpu {
namespace {

constexpr int kThreads = 256;

template <class A>
__global__ void __launch_bounds__(kThreads)
    range_sums_kernel(A* sums, const A* x, const std::int32_t* ranges) {
  KINTSUGI_SHARED(double[32], shared);
  const std::int32_t first = max(ranges[2 * blockIdx.x], 0),
                     last = max(ranges[2 * blockIdx.x + 1], 0);
  double total = 0;
  for (std::int32_t i = first + static_cast<std::int32_t>(threadIdx.x); i < last; i += kThreads)
    total += static_cast<double>(x[i]);
  total = block_sum(total, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = static_cast<A>(total);
}

// -log sigmoid(x), without overflow
__device__ inline double softplus_of_minus(double x) {
  return fmax(-x, 0.0) + log1p(exp(-fabs(x)));
}

struct Rewards {
  double preferred, rejected;
  __device__ double margin() const { return preferred - rejected; }
};

template <class A>
__device__ inline Rewards rewards_of(const A* sums, const A* reference, int pair, double beta) {
  const auto reward = [&](int i) {
    return beta * (-static_cast<double>(sums[i]) - static_cast<double>(reference[i]));
  };
  return {reward(2 * pair), reward(2 * pair + 1)};
}

template <class A>
__global__ void __launch_bounds__(kThreads)
    weights_kernel(A* weights, const A* sums, const A* reference, const std::int32_t* ranges,
                   double beta, double s) {
  const int pair = static_cast<int>(blockIdx.x);
  const std::int32_t* range = ranges + 4 * pair;
  if (range[0] < 0) return;
  const double margin = rewards_of(sums, reference, pair, beta).margin();
  const double slope =
      s * exp(-softplus_of_minus(margin)) - (1 - s) * exp(-softplus_of_minus(-margin));
  for (int side = 0; side < 2; ++side) {
    const A weight = static_cast<A>(beta * slope * (side == 0 ? -1 : 1));
    const std::int32_t last = range[2 * side + 1];
    for (std::int32_t i = range[2 * side] + static_cast<std::int32_t>(threadIdx.x); i < last;
         i += kThreads)
      weights[i] = weight;
  }
}

template <class A>
__global__ void __launch_bounds__(kThreads)
    totals_kernel(A* totals, const A* sums, const A* reference, const std::int32_t* ranges,
                  int pairs, double beta, double s) {
  KINTSUGI_SHARED(double[32], shared);
  double total[4] = {};
  for (int pair = static_cast<int>(threadIdx.x); pair < pairs; pair += kThreads) {
    if (ranges[4 * pair] < 0) continue;
    const Rewards rewards = rewards_of(sums, reference, pair, beta);
    const double margin = rewards.margin();
    total[0] += (1 - s) * softplus_of_minus(margin) + s * softplus_of_minus(-margin);
    total[1] += rewards.preferred;
    total[2] += rewards.rejected;
    total[3] += margin > 0 ? 1 : 0;
  }
  for (int k = 0; k < 4; ++k) {
    const double sum = block_sum(total[k], shared);
    if (threadIdx.x == 0) totals[k] += static_cast<A>(sum);
  }
}

// Losses are fp32 or fp64.
template <class F>
void visit_accumulator(DType dtype, const F& f) {
  if (dtype == DType::F64) return f.template operator()<double>();
  f.template operator()<float>();
}

}  // namespace

void range_sums(const Context& context, Tensor sums, Tensor x, Tensor ranges) {
  const std::int64_t count = sums.elements();
  if (count == 0) return;
  visit_accumulator(sums.dtype(), [&]<class A>() {
    launch_kernel(context.stream, range_sums_kernel<A>, static_cast<unsigned>(count), kThreads, 0,
                  data_of<A>(sums), data_of<A>(x), data_of<std::int32_t>(ranges));
  });
}

void preference_loss(const Context& context, Tensor weights, Tensor totals, Tensor sums,
                     Tensor reference, Tensor ranges, const PreferenceOptions& options) {
  const std::int64_t count = sums.elements();
  fill(context, weights, 0.0);
  if (count == 0) return;
  visit_accumulator(sums.dtype(), [&]<class A>() {
    const int pairs = static_cast<int>(count / 2);
    const A *sum = data_of<A>(sums), *of_reference = data_of<A>(reference);
    const std::int32_t* range = data_of<std::int32_t>(ranges);
    launch_kernel(context.stream, weights_kernel<A>, pairs, kThreads, 0, data_of<A>(weights), sum,
                  of_reference, range, options.beta, options.label_smoothing);
    launch_kernel(context.stream, totals_kernel<A>, 1, kThreads, 0, data_of<A>(totals), sum,
                  of_reference, range, pairs, options.beta, options.label_smoothing);
  });
}

}  // namespace kintsugi::gpu
