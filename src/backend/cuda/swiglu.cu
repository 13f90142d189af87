// SwiGLU: out = silu(gate) * up, with gate and up side by side in one row.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace kintsugi::cuda {
namespace {

template <class T, int N>
__global__ void __launch_bounds__(256)
    forward_kernel(RowView<T> out, RowView<const T> gate_up, int width) {
  using A = Acc<T>;
  allow_next();
  wait_for_previous();
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * N;
  if (i >= width) return;
  const T* from = gate_up[blockIdx.x] + i;
  const Pack<T, N> gate = load<N>(from), linear = load<N>(from + width);
  Pack<T, N> result;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const A g = up(gate.v[k]);
    result.v[k] = down<T>(g * Gate<T>(g).on * up(linear.v[k]));
  }
  store(out[blockIdx.x] + i, result);
}

// dgate_up may be gate_up itself: a thread reads only elements that it writes, and reads them
// before it writes.
template <class T, int N>
__global__ void __launch_bounds__(256) backward_kernel(RowView<T> dgate_up, RowView<const T> dout,
                                                       RowView<const T> gate_up, int width) {
  using A = Acc<T>;
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * N;
  if (i >= width) return;
  const T* from = gate_up[blockIdx.x] + i;
  const Pack<T, N> gate = load<N>(from), linear = load<N>(from + width);
  const Pack<T, N> gradient = load<N>(dout[blockIdx.x] + i);
  Pack<T, N> dgate, dlinear;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const A g = up(gate.v[k]), u = up(linear.v[k]), d = up(gradient.v[k]);
    const Gate<T> s(g);
    dgate.v[k] = down<T>(d * u * s.on * (A(1) + g * s.off));
    dlinear.v[k] = down<T>(d * g * s.on);
  }
  T* to = dgate_up[blockIdx.x] + i;
  store(to, dgate);
  store(to + width, dlinear);
}

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
  backward_kernel<T, N><<<grid.blocks, grid.threads, 0, context.stream>>>(
      rows_of<T>(dgate_up), rows_of<const T>(dout), rows_of<const T>(gate_up),
      static_cast<int>(dout.extent(1)));
  KINTSUGI_LAUNCHED();
}

void check_shapes(const Tensor& out, const Tensor& gate_up) {
  KINTSUGI_CHECK(out.rank() == 2 && gate_up.rank() == 2 && gate_up.extent(0) == out.extent(0) &&
                     gate_up.extent(1) == 2 * out.extent(1),
                 "swiglu {} of {}", to_string(out.shape()), to_string(gate_up.shape()));
}

}  // namespace

void swiglu_forward(const Context& context, Tensor out, Tensor gate_up) {
  check_shapes(out, gate_up);
  if (out.elements() == 0) return;
  visit_device_float(out.dtype(), [&]<class T>() {
    constexpr int N = kVecSize<T>;
    if (rows_of<T>(out).aligned() && rows_of<T>(gate_up).aligned() && out.extent(1) % N == 0)
      launch_forward<T, N>(context, out, gate_up);
    else
      launch_forward<T, 1>(context, out, gate_up);
  });
}

void swiglu_backward(const Context& context, Tensor dgate_up, Tensor dout, Tensor gate_up) {
  check_shapes(dout, gate_up);
  check_shapes(dout, dgate_up);
  if (dout.elements() == 0) return;
  visit_device_float(dout.dtype(), [&]<class T>() {
    constexpr int N = kVecSize<T>;
    if (rows_of<T>(dgate_up).aligned() && rows_of<T>(dout).aligned() &&
        rows_of<T>(gate_up).aligned() && dout.extent(1) % N == 0)
      launch_backward<T, N>(context, dgate_up, dout, gate_up);
    else
      launch_backward<T, 1>(context, dgate_up, dout, gate_up);
  });
}

}  // namespace kintsugi::cuda
