// The order of the choices by expert: a stable counting sort. Blocks count the choices of each
// expert in their tiles; the counts of an expert are summed over the blocks before; and each warp
// moves consecutive choices.
#include <algorithm>

#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"

namespace kintsugi::gpu {
namespace {

constexpr int kSortWarps = 8, kSortThreads = 32 * kSortWarps, kPerThread = 8,
              kPerWarp = 32 * kPerThread, kSortTile = kSortThreads * kPerThread;
constexpr int kMaxOrdered = 1024;  // experts

// The experts of this rank, and the choices.
struct Choices {
  const std::int32_t* ids;
  int count, first, experts;

  // -1: another rank's
  __device__ int expert(int choice) const {
    const int e = choice < count ? ids[choice] - first : -1;
    return e < experts ? e : -1;
  }
};

// counts[expert * blocks + block]
__global__ void __launch_bounds__(kSortThreads) count_choices_kernel(int* counts, Choices choices) {
  KINTSUGI_SHARED(int[kMaxOrdered], histogram);
  const int thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < choices.experts; e += kSortThreads) histogram[e] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int e =
        choices.expert(static_cast<int>(blockIdx.x) * kSortTile + i * kSortThreads + thread);
    if (e >= 0) atomicAdd(&histogram[e], 1);
  }
  __syncthreads();
  for (int e = thread; e < choices.experts; e += kSortThreads)
    counts[e * gridDim.x + blockIdx.x] = histogram[e];
}

// A team per expert: the counts of its blocks become sums over the blocks before, and
// totals[expert] the sum of all.
__global__ void __launch_bounds__(kTeam) sum_counts_kernel(int* totals, int* counts, int blocks) {
  const int lane = static_cast<int>(threadIdx.x);
  int* const own = counts + blockIdx.x * blocks;
  int before = 0;
  for (int begin = 0; begin < blocks; begin += kTeam) {
    const int i = begin + lane, count = i < blocks ? own[i] : 0;
    const int sum = inclusive_sum(count, lane);
    if (i < blocks) own[i] = before + sum - count;
    before += shuffle(sum, kTeam - 1);
  }
  if (lane == 0) totals[blockIdx.x] = before;
}

__global__ void __launch_bounds__(kSortThreads)
    order_choices_kernel(std::int32_t* rows, std::int32_t* offsets, std::int32_t* positions,
                         const int* totals, const int* counts, Choices choices) {
  KINTSUGI_SHARED(int[kMaxOrdered], starts);  // the first row of an expert
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  // next[warp * experts + e]: the row of the warp's next choice of an expert
  int* const next = reinterpret_cast<int*>(dynamic_shared());
  if (warp == 0) {
    int before = 0;
    if (blockIdx.x == 0 && lane == 0) offsets[0] = 0;
    for (int begin = 0; begin < choices.experts; begin += kTeam) {
      const int e = begin + lane, total = e < choices.experts ? totals[e] : 0;
      const int sum = inclusive_sum(total, lane);
      if (e < choices.experts) starts[e] = before + sum - total;
      if (e < choices.experts && blockIdx.x == 0) offsets[e + 1] = before + sum;
      before += shuffle(sum, kTeam - 1);
    }
  }
  int* const own = next + warp * choices.experts;
  for (int e = lane; e < choices.experts; e += 32) own[e] = 0;
  sync_team();
  const int begin = static_cast<int>(blockIdx.x) * kSortTile + warp * kPerWarp;
  int expert[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    expert[i] = choices.expert(begin + i * 32 + lane);
    if (expert[i] >= 0) atomicAdd(&own[expert[i]], 1);
  }
  __syncthreads();
  for (int e = thread; e < choices.experts; e += kSortThreads) {
    int row = starts[e] + counts[e * gridDim.x + blockIdx.x];
    for (int w = 0; w < kSortWarps; ++w) {
      const int count = next[w * choices.experts + e];
      next[w * choices.experts + e] = row;
      row += count;
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int choice = begin + i * 32 + lane;
    const unsigned peers = match_any(expert[i]);
    const int rank = __popc(peers & ((1u << lane) - 1));
    int first = 0;
    if (expert[i] >= 0) first = own[expert[i]];
    sync_team();
    if (expert[i] >= 0 && rank == 0) own[expert[i]] = first + __popc(peers);
    sync_team();
    if (choice < choices.count) positions[choice] = expert[i] < 0 ? -1 : first + rank;
    if (expert[i] >= 0) rows[first + rank] = choice;
  }
}

}  // namespace

void order_choices(const Context& context, ExpertRows rows, Tensor positions, Tensor ids,
                   std::int64_t first_expert) {
  const std::int64_t experts = rows.offsets.elements() - 1;
  KINTSUGI_CHECK(experts <= kMaxOrdered, "order_choices of {} experts: at most {} on a GPU",
                 experts, kMaxOrdered);
  const Choices choices = {.ids = data_of<std::int32_t>(ids),
                           .count = static_cast<int>(ids.elements()),
                           .first = static_cast<int>(first_expert),
                           .experts = static_cast<int>(experts)};
  const int blocks = std::max(1, ceil_div(choices.count, kSortTile));
  int* const totals = context.workspace.get<int>(
      static_cast<std::size_t>(choices.experts) * static_cast<std::size_t>(blocks + 1),
      context.stream);
  int* const counts = totals + choices.experts;
  launch_kernel(context.stream, count_choices_kernel, static_cast<unsigned>(blocks), kSortThreads,
                0, counts, choices);
  launch_kernel(context.stream, sum_counts_kernel, static_cast<unsigned>(choices.experts), kTeam, 0,
                totals, counts, blocks);
  launch_kernel(context.stream, order_choices_kernel, static_cast<unsigned>(blocks), kSortThreads,
                static_cast<std::size_t>(kSortWarps * choices.experts) * sizeof(int),
                data_of<std::int32_t>(rows.rows), data_of<std::int32_t>(rows.offsets),
                data_of<std::int32_t>(positions), totals, counts, choices);
}

}  // namespace kintsugi::gpu
