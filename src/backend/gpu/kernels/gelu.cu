// GELU in the tanh form: x/2 (1 + tanh u) = x * sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3).
#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"
#include "backend/gpu/kernels/maxima.cuh"

namespace kintsugi::gpu {
namespace {

constexpr double kTwiceRoot = 1.5957691216057307118;  // 2 sqrt(2/pi)
constexpr double kCubic = 0.044715;

template <class T>
__device__ inline Gate<T> gate_of(Acc<T> x) {
  using A = Acc<T>;
  return Gate<T>(A(kTwiceRoot) * (x + A(kCubic) * x * x * x));
}

template <class T, int N>
__device__ inline Pack<T, N> activated(const Pack<T, N>& in) {
  Pack<T, N> result;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const Acc<T> v = up(in.v[k]);
    result.v[k] = down<T>(v * gate_of<T>(v).on);
  }
  return result;
}

template <class T, int N>
__device__ inline Pack<T, N> gradient_of(const Pack<T, N>& in, const Pack<T, N>& gradient) {
  using A = Acc<T>;
  Pack<T, N> result;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const A v = up(in.v[k]);
    const Gate<T> gate = gate_of<T>(v);
    const A slope = A(kTwiceRoot) * (A(1) + A(3 * kCubic) * v * v);
    result.v[k] = down<T>(up(gradient.v[k]) * (gate.on + v * gate.on * gate.off * slope));
  }
  return result;
}

// ---- a thread per access
template <class T, int N>
__global__ void __launch_bounds__(256) forward_kernel(T* out, const T* x, std::int64_t packs) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= packs) return;
  store(out + i * N, activated(load<N>(x + i * N)));
}

template <class T, int N>
__global__ void __launch_bounds__(256)
    backward_kernel(T* dx, const T* dout, const T* x, std::int64_t packs) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= packs) return;
  const Pack<T, N> in = load<N>(x + i * N), gradient = load<N>(dout + i * N);
  store(dx + i * N, gradient_of(in, gradient));
}

// ---- the same in strips (maxima.cuh), with the maxima of the result.
constexpr int kRowsAtOnce = 2;  // of a thread: two or four loads before the first use

template <class T, int N, bool kBackward>
__global__ void __launch_bounds__(kStripThreads, 4)
    strip_kernel(Matrix<T> result, MaximaBits maxima, Matrix<const T> dout, Matrix<const T> x,
                 StripSize size) {
  allow_next();
  const StripThread<N> first(size.strip_rows);
  const bool inside = first.column < size.width;
  Magnitudes<T, N> columns;
  for (int i = 0; i < size.strip_rows; i += kStripWarps * kRowsAtOnce) {
    Pack<T, N> in[kRowsAtOnce] = {}, gradient[kRowsAtOnce] = {};
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int row = first.row + i + r * kStripWarps;
      if (!inside || row >= size.rows) continue;
      in[r] = load<N>(x.at(row, first.column));
      if (kBackward) gradient[r] = load<N>(dout.at(row, first.column));
    }
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int row = first.row + i + r * kStripWarps;
      if (row >= size.rows) continue;
      const Pack<T, N> out = kBackward ? gradient_of(in[r], gradient[r]) : activated(in[r]);
      if (inside) store(result.at(row, first.column), out);
      const Magnitudes<T, N> here(out);
      columns.include(here);
      write_row_maximum(maxima.rows + row, here.largest());
    }
  }
  write_column_maxima(maxima.columns, nullptr, columns, first.panel, size.width);
}

// ---- launches
template <class T, int N>
void launch_forward(const Context& context, T* out, const T* x, std::int64_t packs) {
  launch_kernel(context.stream, forward_kernel<T, N>, flat_blocks(packs), 256, 0, out, x, packs);
}

template <class T, int N>
void launch_backward(const Context& context, T* dx, const T* dout, const T* x, std::int64_t packs) {
  launch_kernel(context.stream, backward_kernel<T, N>, flat_blocks(packs), 256, 0, dx, dout, x,
                packs);
}

// The kernel follows the memset of the maxima, which nothing overlaps.
template <class T, bool kBackward>
void launch_strips(const Context& context, const Tensor& result, const Maxima& maxima,
                   const Tensor& dout, const Tensor& x) {
  constexpr int N = kVecSize<T>;
  clear_maxima(context, maxima);
  const StripGrid grid(context, x.extent(0), x.extent(1) / N);
  const StripSize size{static_cast<int>(x.extent(0)), static_cast<int>(x.extent(1)), grid.rows};
  launch_kernel(context.stream, strip_kernel<T, N, kBackward>, grid.blocks, kStripThreads, 0,
                Matrix<T>(result), maxima_bits(maxima), Matrix<const T>(dout), Matrix<const T>(x),
                size);
}

}  // namespace

void gelu_forward(const Context& context, Tensor out, Tensor x, Maxima maxima) {
  if (x.elements() == 0) return;
  visit_device_float(x.dtype(), [&]<class T>() {
    constexpr int N = kVecSize<T>;
    T *to = data_of<T>(out), *from = data_of<T>(x);
    const bool aligned = aligned16(to) && aligned16(from);
    if (maxima && aligned && out.extent(1) % N == 0)
      return launch_strips<T, false>(context, out, maxima, x, x);
    if (aligned && x.elements() % N == 0)
      launch_forward<T, N>(context, to, from, x.elements() / N);
    else
      launch_forward<T, 1>(context, to, from, x.elements());
    if (maxima) find_maxima(context, maxima, out);
  });
}

void gelu_backward(const Context& context, Tensor dx, Tensor dout, Tensor x, Maxima maxima) {
  if (x.elements() == 0) return;
  visit_device_float(x.dtype(), [&]<class T>() {
    constexpr int N = kVecSize<T>;
    T *to = data_of<T>(dx), *gradient = data_of<T>(dout), *from = data_of<T>(x);
    const bool aligned = aligned16(to) && aligned16(gradient) && aligned16(from);
    if (maxima && aligned && dx.extent(1) % N == 0)
      return launch_strips<T, true>(context, dx, maxima, dout, x);
    if (aligned && x.elements() % N == 0)
      launch_backward<T, N>(context, to, gradient, from, x.elements() / N);
    else
      launch_backward<T, 1>(context, to, gradient, from, x.elements());
    if (maxima) find_maxima(context, maxima, dx);
  });
}

}  // namespace kintsugi::gpu
