// The activation of experts, with the weight of each row, and the sums of their rows per token.
// Rows after the last offset are left alone: how many there are is known on the device only.
#include <algorithm>

#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"
#include "backend/gpu/kernels/maxima.cuh"

namespace kintsugi::gpu {
namespace {

// ---- the activation: a warp has a row at a time
constexpr int kRowWarps = 8, kRowThreads = 32 * kRowWarps;
constexpr int kRowBlocks = 8;  // of a multiprocessor

// The choices of the rows, and how many are used.
struct ChosenRows {
  const std::int32_t *rows, *used;

  // Calls f(row, choice) for every row of this warp.
  template <class F>
  __device__ void for_each(F&& f) const {
    const int step = static_cast<int>(gridDim.x) * kRowWarps, count = *used;
    for (int row = static_cast<int>(blockIdx.x) * kRowWarps + static_cast<int>(threadIdx.x) / 32;
         row < count; row += step)
      f(row, rows[row]);
  }
};

template <class T, int N>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(RowView<T> out, RowView<const T> gate_up, const Acc<T>* weights, ChosenRows rows,
                   int width) {
  using A = Acc<T>;
  allow_next();
  wait_for_previous();
  rows.for_each([&](int row, int choice) {
    const A weight = weights[choice];
    const T* const from = gate_up[row];
    T* const to = out[row];
    for (int i = static_cast<int>(threadIdx.x) % 32 * N; i < width; i += 32 * N) {
      const Pack<T, N> gate = load<N>(from + i), linear = load<N>(from + width + i);
      Pack<T, N> result;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const A g = element(gate, k);
        result.v[k] = down<T>(weight * (g * Gate<T>(g).on * element(linear, k)));
      }
      store(to + i, result);
    }
  });
}

template <class T, int N>
__global__ void __launch_bounds__(kRowThreads)
    backward_kernel(RowView<T> dgate_up, Acc<T>* dweights, RowView<const T> dout,
                    RowView<const T> gate_up, const Acc<T>* weights, ChosenRows rows, int width) {
  using A = Acc<T>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  rows.for_each([&](int row, int choice) {
    const A weight = weights[choice];
    const T *const from = gate_up[row], *const gradient = dout[row];
    T* const to = dgate_up[row];
    A dweight = 0;
    for (int i = lane * N; i < width; i += 32 * N) {
      const Pack<T, N> gate = load<N>(from + i), linear = load<N>(from + width + i),
                       d = load<N>(gradient + i);
      Pack<T, N> dgate, dlinear;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const A g = element(gate, k), u = element(linear, k), weighted = weight * element(d, k);
        const Gate<T> s(g);
        dweight += element(d, k) * g * s.on * u;
        dgate.v[k] = down<T>(weighted * u * s.on * (A(1) + g * s.off));
        dlinear.v[k] = down<T>(weighted * g * s.on);
      }
      store(to + i, dgate);
      store(to + width + i, dlinear);
    }
    dweight = warp_sum(dweight);
    if (lane == 0) dweights[choice] = dweight;
  });
}

// ---- sums per token: a thread per access
template <class T, int N>
__global__ void __launch_bounds__(256)
    combine_kernel(RowView<T> y, RowView<const T> x, const std::int32_t* positions,
                   RowView<const T> residual, int k, int width) {
  constexpr int kAhead = 4;  // loads in flight
  allow_next();
  wait_for_previous();
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * N;
  if (i >= width) return;
  const std::int32_t* const own = positions + static_cast<std::int64_t>(blockIdx.x) * k;
  Acc<T> sums[N] = {};
  if (residual.base != nullptr) {
    const Pack<T, N> pack = load<N>(residual[blockIdx.x] + i);
#pragma unroll
    for (int n = 0; n < N; ++n) sums[n] = element(pack, n);
  }
  for (int slot = 0; slot < k; slot += kAhead) {
    Pack<T, N> packs[kAhead];
    bool present[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int row = slot + a < k ? own[slot + a] : -1;
      present[a] = row >= 0;
      if (present[a]) packs[a] = load<N>(x[row] + i);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (!present[a]) continue;
#pragma unroll
      for (int n = 0; n < N; ++n) sums[n] += element(packs[a], n);
    }
  }
  Pack<T, N> result;
#pragma unroll
  for (int n = 0; n < N; ++n) result.v[n] = down<T>(sums[n]);
  store(y[blockIdx.x] + i, result);
}

// ---- launches
ChosenRows chosen_rows(const ExpertRows& rows) {
  return {data_of<std::int32_t>(rows.rows),
          data_of<std::int32_t>(rows.offsets) + rows.offsets.elements() - 1};
}

unsigned row_blocks(const Context& context, const ExpertRows& rows) {
  return static_cast<unsigned>(
      std::min<std::int64_t>(ceil_div<std::int64_t>(rows.rows.elements(), kRowWarps),
                             static_cast<std::int64_t>(kRowBlocks) * context.multiprocessors));
}

template <class T, int N>
void launch_forward(const Context& context, const Tensor& out, const Tensor& gate_up,
                    const Tensor& weights, const ExpertRows& rows) {
  launch_overlapped(context, forward_kernel<T, N>, row_blocks(context, rows), kRowThreads, 0,
                    rows_of<T>(out), rows_of<const T>(gate_up), data_of<Acc<T>>(weights),
                    chosen_rows(rows), static_cast<int>(out.extent(1)));
}

template <class T, int N>
void launch_backward(const Context& context, const Tensor& dgate_up, const Tensor& dweights,
                     const Tensor& dout, const Tensor& gate_up, const Tensor& weights,
                     const ExpertRows& rows) {
  launch_kernel(context.stream, backward_kernel<T, N>, row_blocks(context, rows), kRowThreads, 0,
                rows_of<T>(dgate_up), data_of<Acc<T>>(dweights), rows_of<const T>(dout),
                rows_of<const T>(gate_up), data_of<Acc<T>>(weights), chosen_rows(rows),
                static_cast<int>(dout.extent(1)));
}

template <class T, int N>
void launch_combine(const Context& context, const Tensor& y, const Tensor& x,
                    const Tensor& positions, const Tensor& residual) {
  const RowGrid grid(y.extent(0), y.extent(1) / N);
  launch_overlapped(context, combine_kernel<T, N>, grid.blocks, grid.threads, 0, rows_of<T>(y),
                    rows_of<const T>(x), data_of<std::int32_t>(positions),
                    rows_of<const T>(residual), static_cast<int>(positions.extent(1)),
                    static_cast<int>(y.extent(1)));
}

}  // namespace

void expert_swiglu_forward(const Context& context, Tensor out, Tensor gate_up, Tensor weights,
                           const ExpertRows& rows) {
  if (rows.rows.elements() == 0 || out.elements() == 0) return;
  visit_device_float(out.dtype(), [&]<class T>() {
    constexpr int N = kVecSize<T>;
    if (rows_of<T>(out).aligned() && rows_of<T>(gate_up).aligned() && out.extent(1) % N == 0)
      launch_forward<T, N>(context, out, gate_up, weights, rows);
    else
      launch_forward<T, 1>(context, out, gate_up, weights, rows);
  });
}

void expert_swiglu_backward(const Context& context, Tensor dgate_up, Tensor dweights, Tensor dout,
                            Tensor gate_up, Tensor weights, const ExpertRows& rows) {
  if (rows.rows.elements() == 0 || dout.elements() == 0) return;
  visit_device_float(dout.dtype(), [&]<class T>() {
    constexpr int N = kVecSize<T>;
    if (rows_of<T>(dgate_up).aligned() && rows_of<T>(dout).aligned() &&
        rows_of<T>(gate_up).aligned() && dout.extent(1) % N == 0)
      launch_backward<T, N>(context, dgate_up, dweights, dout, gate_up, weights, rows);
    else
      launch_backward<T, 1>(context, dgate_up, dweights, dout, gate_up, weights, rows);
  });
}

void combine_rows(const Context& context, Tensor y, Tensor x, Tensor positions, Tensor residual) {
  if (y.elements() == 0) return;
  visit_device_float(y.dtype(), [&]<class T>() {
    constexpr int N = kVecSize<T>;
    if (rows_of<T>(y).aligned() && rows_of<T>(x).aligned() && rows_of<T>(residual).aligned() &&
        y.extent(1) % N == 0)
      launch_combine<T, N>(context, y, x, positions, residual);
    else
      launch_combine<T, 1>(context, y, x, positions, residual);
  });
}

}  // namespace kintsugi::gpu
