// Gradient of a bias: column sums in two stages and a fixed order. Also adds a bias to a matmul.
#include <algorithm>

#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/column_sums.cuh"

namespace kintsugi::gpu {
namespace {

constexpr int kLanes = 32;      // packs of columns that a block reads at a time
constexpr int kRowsAtOnce = 8;  // rows that a block reads at a time

// partials[range * width + column] = sum over the rows of a range. Blocks (packs of columns, ranges
// of rows).
template <class T, int N>
__global__ void __launch_bounds__(kLanes* kRowsAtOnce)
    column_sums_kernel(Acc<T>* partials, const T* x, std::int64_t stride, int rows,
                       int rows_per_range, int width) {
  using A = Acc<T>;
  KINTSUGI_SHARED(A[kRowsAtOnce][kLanes * N], shared);
  const int lane = static_cast<int>(threadIdx.x) % kLanes,
            group = static_cast<int>(threadIdx.x) / kLanes;
  const int first = (static_cast<int>(blockIdx.x) * kLanes + lane) * N;
  const int begin = static_cast<int>(blockIdx.y) * rows_per_range;
  const int end = min(rows, begin + rows_per_range);
  A sums[N] = {};
  if (first < width) {
#pragma unroll 4
    for (int row = begin + group; row < end; row += kRowsAtOnce) {
      const Pack<T, N> pack = load<N>(x + row * stride + first);
#pragma unroll
      for (int k = 0; k < N; ++k) sums[k] += up(pack.v[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < N; ++k) shared[group][lane * N + k] = sums[k];
  __syncthreads();
  const int block_first = static_cast<int>(blockIdx.x) * kLanes * N;
  for (int i = static_cast<int>(threadIdx.x); i < kLanes * N && block_first + i < width;
       i += kLanes * kRowsAtOnce) {
    A total = shared[0][i];
#pragma unroll
    for (int g = 1; g < kRowsAtOnce; ++g) total += shared[g][i];
    partials[static_cast<std::int64_t>(blockIdx.y) * width + block_first + i] = total;
  }
}

template <class T, int N>
void column_sums(const Context& context, Acc<T>* target, const T* x, std::int64_t stride, int rows,
                 int width) {
  const int column_blocks = ceil_div(width, kLanes * N);
  const int row_blocks = std::max(1, 8 * context.multiprocessors / column_blocks);
  const int ranges = std::min({row_blocks, ceil_div(rows, 4 * kRowsAtOnce), 65535});
  const int rows_per_range = ceil_div(rows, ranges);
  Acc<T>* partials =
      context.workspace.get<Acc<T>>(static_cast<std::size_t>(ranges) * width, context.stream);
  launch_kernel(context.stream, column_sums_kernel<T, N>, dim3(column_blocks, ranges),
                kLanes * kRowsAtOnce, 0, partials, x, stride, rows, rows_per_range, width);
  add_partials(context, target, partials, ranges, width, width);
}

// c = x + bias + residual, rounded once. residual may be empty, or c itself.
template <class T>
__global__ void __launch_bounds__(256) add_bias_kernel(RowView<T> c, const Acc<T>* x, const T* bias,
                                                       RowView<const T> residual, int width) {
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (i >= width) return;
  Acc<T> value = x[static_cast<std::int64_t>(blockIdx.x) * width + i] + up(bias[i]);
  if (residual.base != nullptr) value += up(residual[blockIdx.x][i]);
  c[blockIdx.x][i] = down<T>(value);
}

template <class T>
void launch_add_bias(const Context& context, const Tensor& c, const Tensor& x, const Tensor& bias,
                     const Tensor& residual) {
  const RowGrid grid(c.extent(0), c.extent(1));
  launch_kernel(context.stream, add_bias_kernel<T>, grid.blocks, grid.threads, 0, rows_of<T>(c),
                data_of<Acc<T>>(x), data_of<T>(bias), rows_of<const T>(residual),
                static_cast<int>(c.extent(1)));
}

}  // namespace

void bias_backward(const Context& context, Tensor dbias, Tensor dy) {
  if (dy.elements() == 0) return;
  const int rows = static_cast<int>(dy.extent(0)), width = static_cast<int>(dy.extent(1));
  visit_device_float(dy.dtype(), [&]<class T>() {
    const RowView<const T> x = rows_of<const T>(dy);
    Acc<T>* target = data_of<Acc<T>>(dbias);
    if (x.aligned() && width % kVecSize<T> == 0)
      column_sums<T, kVecSize<T>>(context, target, x.base, x.outer_stride, rows, width);
    else
      column_sums<T, 1>(context, target, x.base, x.outer_stride, rows, width);
  });
}

void add_bias(const Context& context, Tensor c, Tensor x, Tensor bias, Tensor residual) {
  KINTSUGI_CHECK(c.rank() == 2 && bias.elements() == c.extent(1) && x.shape() == c.shape() &&
                     x.contiguous() && (!residual || residual.shape() == c.shape()),
                 "bias {} for a matmul of {}", to_string(bias.shape()), to_string(c.shape()));
  if (c.elements() == 0) return;
  visit_device_float(c.dtype(),
                     [&]<class T>() { launch_add_bias<T>(context, c, x, bias, residual); });
}

}  // namespace kintsugi::gpu
