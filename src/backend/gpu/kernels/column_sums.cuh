#pragma once

#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"

// Column sums over many rows in a fixed order, in two stages: blocks write partial sums to the
// workspace, and the second stage, here, adds them up.
namespace kintsugi::gpu {

inline constexpr int kPartialThreads = 32;

// target[column] += sum over i of partials[i * stride + column]. A block has 32 columns and 32
// groups of i.
template <class A>
__global__ void __launch_bounds__(1024)
    add_partials_kernel(A* target, const A* partials, int count, std::int64_t stride, int width) {
  KINTSUGI_SHARED(A[kPartialThreads][kPartialThreads + 1], groups);
  const int column = static_cast<int>(blockIdx.x) * kPartialThreads + static_cast<int>(threadIdx.x);
  A total = 0;
  if (column < width) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.y); i < count; i += kPartialThreads)
      total += partials[i * stride + column];
  }
  groups[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  // Transposed: one warp adds up the groups of one column.
  total = warp_sum(groups[threadIdx.x][threadIdx.y]);
  const int my_column =
      static_cast<int>(blockIdx.x) * kPartialThreads + static_cast<int>(threadIdx.y);
  if (threadIdx.x == 0 && my_column < width) target[my_column] += total;
}

template <class A>
void add_partials(const Context& context, A* target, const A* partials, int count,
                  std::int64_t stride, int width) {
  if (target == nullptr) return;
  const dim3 threads(kPartialThreads, kPartialThreads);
  launch_kernel(context.stream, add_partials_kernel<A>, ceil_div(width, kPartialThreads), threads,
                0, target, partials, count, stride, width);
}

}  // namespace kintsugi::gpu
