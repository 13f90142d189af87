// SwiGLU: out = silu(gate) * up, with gate and up side by side in one row.
#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"
#include "backend/gpu/kernels/maxima.cuh"

namespace kintsugi::gpu {
namespace {

template <class T, int N>
__device__ inline Pack<T, N> gated(const Pack<T, N>& gate, const Pack<T, N>& linear) {
  Pack<T, N> result;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const Acc<T> g = element(gate, k);
    result.v[k] = down<T>(g * Gate<T>(g).on * element(linear, k));
  }
  return result;
}

template <class T, int N>
struct Gradients {
  Pack<T, N> gate, linear;

  __device__ Gradients(const Pack<T, N>& dout, const Pack<T, N>& gate_in,
                       const Pack<T, N>& linear_in) {
    using A = Acc<T>;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const A g = element(gate_in, k), u = element(linear_in, k), d = element(dout, k);
      const Gate<T> s(g);
      gate.v[k] = down<T>(d * u * s.on * (A(1) + g * s.off));
      linear.v[k] = down<T>(d * g * s.on);
    }
  }
};

// ---- a thread per access
template <class T, int N>
__global__ void __launch_bounds__(256)
    forward_kernel(RowView<T> out, RowView<const T> gate_up, int width) {
  allow_next();
  wait_for_previous();
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * N;
  if (i >= width) return;
  const T* from = gate_up[blockIdx.x] + i;
  const Pack<T, N> gate = load<N>(from), linear = load<N>(from + width);
  store(out[blockIdx.x] + i, gated(gate, linear));
}

// dgate_up may be gate_up itself: a thread reads only elements that it writes, and reads them
// before it writes.
template <class T, int N>
__global__ void __launch_bounds__(256) backward_kernel(RowView<T> dgate_up, RowView<const T> dout,
                                                       RowView<const T> gate_up, int width) {
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * N;
  if (i >= width) return;
  const T* from = gate_up[blockIdx.x] + i;
  const Pack<T, N> gate = load<N>(from), linear = load<N>(from + width);
  const Gradients<T, N> gradients(load<N>(dout[blockIdx.x] + i), gate, linear);
  T* to = dgate_up[blockIdx.x] + i;
  store(to, gradients.gate);
  store(to + width, gradients.linear);
}

// ---- the same in strips (maxima.cuh), with the maxima of the result
constexpr int kRowsAtOnce = 2;  // of a thread: four or six loads before the first use

// On a multiprocessor, as the registers allow without spills.
constexpr int kForwardBlocks = 5, kBackwardBlocks = 4;

template <class T, int N>
__global__ void __launch_bounds__(kStripThreads, kForwardBlocks)
    forward_maxima_kernel(Matrix<T> out, unsigned* row_maxima, unsigned* column_maxima,
                          Matrix<const T> gate_up, StripSize size) {
  allow_next();
  const StripThread<N> first(size.strip_rows);
  const bool inside = first.column < size.width;
  Magnitudes<T, N> columns;
  for (int i = 0; i < size.strip_rows; i += kStripWarps * kRowsAtOnce) {
    Pack<T, N> gate[kRowsAtOnce] = {}, linear[kRowsAtOnce] = {};
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int row = first.row + i + r * kStripWarps;
      if (!inside || row >= size.rows) continue;
      const T* from = gate_up.at(row, first.column);
      gate[r] = load<N>(from);
      linear[r] = load<N>(from + size.width);
    }
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int row = first.row + i + r * kStripWarps;
      if (row >= size.rows) continue;
      const Pack<T, N> result = gated(gate[r], linear[r]);
      if (inside) store(out.at(row, first.column), result);
      const Magnitudes<T, N> here(result);
      columns.include(here);
      write_row_maximum(row_maxima + row, here.largest());
    }
  }
  write_column_maxima(column_maxima, nullptr, columns, first.panel, size.width);
}

template <class T, int N>
__global__ void __launch_bounds__(kStripThreads, kBackwardBlocks)
    backward_maxima_kernel(Matrix<T> dgate_up, unsigned* row_maxima, unsigned* column_maxima,
                           Matrix<const T> dout, Matrix<const T> gate_up, StripSize size) {
  allow_next();
  const StripThread<N> first(size.strip_rows);
  const bool inside = first.column < size.width;
  Magnitudes<T, N> gate_columns, linear_columns;
  for (int i = 0; i < size.strip_rows; i += kStripWarps * kRowsAtOnce) {
    Pack<T, N> gate[kRowsAtOnce] = {}, linear[kRowsAtOnce] = {}, gradient[kRowsAtOnce] = {};
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int row = first.row + i + r * kStripWarps;
      if (!inside || row >= size.rows) continue;
      const T* from = gate_up.at(row, first.column);
      gate[r] = load<N>(from);
      linear[r] = load<N>(from + size.width);
      gradient[r] = load<N>(dout.at(row, first.column));
    }
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int row = first.row + i + r * kStripWarps;
      if (row >= size.rows) continue;
      const Gradients<T, N> result(gradient[r], gate[r], linear[r]);
      T* to = dgate_up.at(row, first.column);
      if (inside) store(to, result.gate), store(to + size.width, result.linear);
      const Magnitudes<T, N> in_gate(result.gate), in_linear(result.linear);
      gate_columns.include(in_gate);
      linear_columns.include(in_linear);
      write_row_maximum(row_maxima + row, max(in_gate.largest(), in_linear.largest()));
    }
  }
  write_column_maxima(column_maxima, nullptr, gate_columns, first.panel, size.width);
  write_column_maxima(column_maxima + size.width, nullptr, linear_columns, first.panel, size.width);
}

// ---- launches
template <class T, int N>
void launch_forward(const Context& context, const Tensor& out, const Tensor& gate_up) {
  const RowGrid grid(out.extent(0), out.extent(1) / N);
  launch_overlapped(context, forward_kernel<T, N>, grid.blocks, grid.threads, 0, rows_of<T>(out),
                    rows_of<const T>(gate_up), static_cast<int>(out.extent(1)));
}

template <class T, int N>
void launch_backward(const Context& context, const Tensor& dgate_up, const Tensor& dout,
                     const Tensor& gate_up) {
  const RowGrid grid(dout.extent(0), dout.extent(1) / N);
  launch_kernel(context.stream, backward_kernel<T, N>, grid.blocks, grid.threads, 0,
                rows_of<T>(dgate_up), rows_of<const T>(dout), rows_of<const T>(gate_up),
                static_cast<int>(dout.extent(1)));
}

// The kernels with maxima follow the memset of the maxima, which nothing overlaps.
template <class T>
void launch_forward_maxima(const Context& context, const Tensor& out, const Maxima& maxima,
                           const Tensor& gate_up) {
  constexpr int N = kVecSize<T>;
  const StripGrid grid(context, out.extent(0), out.extent(1) / N);
  const StripSize size{static_cast<int>(out.extent(0)), static_cast<int>(out.extent(1)), grid.rows};
  launch_kernel(context.stream, forward_maxima_kernel<T, N>, grid.blocks, kStripThreads, 0,
                Matrix<T>(out), maxima_bits(maxima.rows), maxima_bits(maxima.columns),
                Matrix<const T>(gate_up), size);
}

template <class T>
void launch_backward_maxima(const Context& context, const Tensor& dgate_up, const Maxima& maxima,
                            const Tensor& dout, const Tensor& gate_up) {
  constexpr int N = kVecSize<T>;
  const StripGrid grid(context, dout.extent(0), dout.extent(1) / N);
  const StripSize size{static_cast<int>(dout.extent(0)), static_cast<int>(dout.extent(1)),
                       grid.rows};
  launch_kernel(context.stream, backward_maxima_kernel<T, N>, grid.blocks, kStripThreads, 0,
                Matrix<T>(dgate_up), maxima_bits(maxima.rows), maxima_bits(maxima.columns),
                Matrix<const T>(dout), Matrix<const T>(gate_up), size);
}

}  // namespace

void swiglu_forward(const Context& context, Tensor out, Tensor gate_up, Maxima maxima) {
  if (maxima) clear_maxima(context, maxima);
  if (out.elements() == 0) return;
  visit_device_float(out.dtype(), [&]<class T>() {
    constexpr int N = kVecSize<T>;
    const bool packs =
        rows_of<T>(out).aligned() && rows_of<T>(gate_up).aligned() && out.extent(1) % N == 0;
    if (packs && maxima) return launch_forward_maxima<T>(context, out, maxima, gate_up);
    if (packs) return launch_forward<T, N>(context, out, gate_up);
    launch_forward<T, 1>(context, out, gate_up);
    if (maxima) find_maxima(context, maxima, out);
  });
}

void swiglu_backward(const Context& context, Tensor dgate_up, Tensor dout, Tensor gate_up,
                     Maxima maxima) {
  if (maxima) clear_maxima(context, maxima);
  if (dout.elements() == 0) return;
  visit_device_float(dout.dtype(), [&]<class T>() {
    constexpr int N = kVecSize<T>;
    const bool packs = rows_of<T>(dgate_up).aligned() && rows_of<T>(dout).aligned() &&
                       rows_of<T>(gate_up).aligned() && dout.extent(1) % N == 0;
    if (packs && maxima) return launch_backward_maxima<T>(context, dgate_up, maxima, dout, gate_up);
    if (packs) return launch_backward<T, N>(context, dgate_up, dout, gate_up);
    launch_backward<T, 1>(context, dgate_up, dout, gate_up);
    if (maxima) find_maxima(context, maxima, dgate_up);
  });
}

}  // namespace kintsugi::gpu
