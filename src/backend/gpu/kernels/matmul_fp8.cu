// Matmuls of fp8 operands without tensor cores, slow and exact to the accumulator's precision.
#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"

namespace kintsugi::gpu {
namespace {

struct Operand {
  const Fp8* values;  // (rows, depth)
  const float* scales;
  int step;  // 0: one scale for all rows
};

template <class T>
struct Added {
  RowView<const T> rows;  // base nullptr: none
  const T* bias;          // nullptr: none
};

constexpr int kElementsAtOnce = 16;  // k is a multiple of it

template <class T>
__global__ void __launch_bounds__(256)
    each_kernel(RowView<T> c, Operand a, Operand b, Added<T> added, int n, int k) {
  using A = Acc<T>;
  const int row = static_cast<int>(blockIdx.x),
            column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (column >= n) return;
  const Fp8 *left = a.values + static_cast<std::int64_t>(row) * k,
            *right = b.values + static_cast<std::int64_t>(column) * k;
  A sum = 0;
  for (int i = 0; i < k; i += kElementsAtOnce)
#pragma unroll
    for (int j = 0; j < kElementsAtOnce; ++j)
      sum += static_cast<A>(to_float(left[i + j])) * static_cast<A>(to_float(right[i + j]));
  sum *= static_cast<A>(a.scales[row * a.step]);
  sum *= static_cast<A>(b.scales[column * b.step]);
  if (added.bias != nullptr) sum += up(added.bias[column]);
  if (added.rows.base != nullptr) sum += up(added.rows[row][column]);
  c[row][column] = down<T>(sum);
}

Operand operand_of(const Quantized& q) {
  return {.values = static_cast<const Fp8*>(q.values.data()),
          .scales = data_of<float>(q.scales),
          .step = q.scales.elements() == 1 ? 0 : 1};
}

}  // namespace

void matmul_fp8_each(const Context& context, Tensor c, Quantized a, Quantized b,
                     const MatmulOptions& o) {
  const RowGrid grid(c.extent(0), c.extent(1));
  visit_device_float(c.dtype(), [&]<class T>() {
    const Added<T> added = {rows_of<const T>(o.accumulate ? c : o.residual), data_of<T>(o.bias)};
    launch_kernel(context.stream, each_kernel<T>, grid.blocks, grid.threads, 0, rows_of<T>(c),
                  operand_of(a), operand_of(b), added, static_cast<int>(c.extent(1)),
                  static_cast<int>(a.columns()));
  });
}

}  // namespace kintsugi::gpu
