// RMSNorm without a weight, times a gate: y = silu(gate) * x * rstd.
#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/norm.cuh"

namespace kintsugi::gpu {
namespace {

template <class T>
struct Rows {
  RowView<T> y;
  Acc<T>* rstd;
  RowView<const T> x, gate;
  // Backward: y is dx.
  RowView<T> dgate;
  RowView<const T> dy;
  std::int64_t rows;
  int width;
  Acc<T> eps;
};

template <class T, int N, int kVecs, int kLanes>
__global__ void __launch_bounds__(kNormThreads<kLanes>) forward_kernel(Rows<T> p, int packs) {
  using A = Acc<T>;
  using Threads = Team<kLanes>;
  KINTSUGI_SHARED(A[32], shared);
  const int lane = Threads::lane(), lanes = Threads::lanes();
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * Threads::count() + Threads::index();
  const bool active = row < p.rows;
  const int my_packs = active ? packs : 0;
  RowCache<T, N, kVecs> x, gate;
  x.read(p.x[active ? row : 0], my_packs, lane, lanes);
  gate.read(p.gate[active ? row : 0], my_packs, lane, lanes);
  A squares = 0;
  for_packs<kVecs>(my_packs, lane, lanes, [&](int j, int i) {
    const Pack<T, N> in = x.at(j, i);
#pragma unroll
    for (int k = 0; k < N; ++k) squares += up(in.v[k]) * up(in.v[k]);
  });
  squares = Threads::sum(squares, shared);
  const A r = A(1) / sqrt(squares / A(p.width) + p.eps);
  if (!active) return;
  if (lane == 0) p.rstd[row] = r;
  T* y = p.y[row];
  for_packs<kVecs>(my_packs, lane, lanes, [&](int j, int i) {
    const Pack<T, N> in = x.at(j, i), g = gate.at(j, i);
    Pack<T, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const A value = up(g.v[k]);
      out.v[k] = down<T>(value * Gate<T>(value).on * (up(in.v[k]) * r));
    }
    store(y + i * N, out);
  });
}

// With h = x * rstd and g = dy * silu(gate): dx = rstd * (g - h * mean(g * h)), and
// dgate = dy * h * silu'(gate). A thread writes only elements that it has read itself, since dx may
// be dy or x, and dgate may be gate.
template <class T, int N, int kVecs, int kLanes>
__global__ void __launch_bounds__(kNormThreads<kLanes>) backward_kernel(Rows<T> p, int packs) {
  using A = Acc<T>;
  using Threads = Team<kLanes>;
  KINTSUGI_SHARED(A[32], shared);
  const int lane = Threads::lane(), lanes = Threads::lanes();
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * Threads::count() + Threads::index();
  const bool active = row < p.rows;
  const int my_packs = active ? packs : 0;
  RowCache<T, N, kVecs> dy, x, gate;
  dy.read(p.dy[active ? row : 0], my_packs, lane, lanes);
  x.read(p.x[active ? row : 0], my_packs, lane, lanes);
  gate.read(p.gate[active ? row : 0], my_packs, lane, lanes);
  const A r = p.rstd[active ? row : 0];
  A dot = 0;
  for_packs<kVecs>(my_packs, lane, lanes, [&](int j, int i) {
    const Pack<T, N> d = dy.at(j, i), in = x.at(j, i), g = gate.at(j, i);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const A value = up(g.v[k]);
      dot += up(d.v[k]) * value * Gate<T>(value).on * up(in.v[k]) * r;
    }
  });
  const A mean = Threads::sum(dot, shared) / A(p.width);
  if (!active) return;
  T *dx = p.y[row], *dgate = p.dgate[row];
  for_packs<kVecs>(my_packs, lane, lanes, [&](int j, int i) {
    const Pack<T, N> d = dy.at(j, i), in = x.at(j, i), g = gate.at(j, i);
    Pack<T, N> to_x, to_gate;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const A value = up(g.v[k]), h = up(in.v[k]) * r;
      const Gate<T> s(value);
      to_x.v[k] = down<T>(r * (up(d.v[k]) * value * s.on - h * mean));
      to_gate.v[k] = down<T>(up(d.v[k]) * h * s.on * (A(1) + value * s.off));
    }
    store(dx + i * N, to_x);
    store(dgate + i * N, to_gate);
  });
}

}  // namespace

void gated_norm_forward(const Context& context, Tensor y, Tensor rstd, Tensor x, Tensor gate,
                        double eps) {
  if (x.elements() == 0) return;
  visit_device_float(x.dtype(), [&]<class T>() {
    const Rows<T> p = {.y = rows_of<T>(y),
                       .rstd = data_of<Acc<T>>(rstd),
                       .x = rows_of<const T>(x),
                       .gate = rows_of<const T>(gate),
                       .dgate = {},
                       .dy = {},
                       .rows = row_count(x),
                       .width = static_cast<int>(x.extent(x.rank() - 1)),
                       .eps = static_cast<Acc<T>>(eps)};
    const bool aligned = p.y.aligned() && p.x.aligned() && p.gate.aligned();
    for_norm_backward<T, 4>(p.width, aligned, [&]<int N, int kVecs, int kLanes>(int packs) {
      launch_kernel(context.stream, forward_kernel<T, N, kVecs, kLanes>,
                    norm_blocks<kVecs, kLanes>(p.rows, packs),
                    norm_grid<kVecs, kLanes>(packs).threads, 0, p, packs);
    });
  });
}

void gated_norm_backward(const Context& context, Tensor dx, Tensor dgate, Tensor dy, Tensor x,
                         Tensor gate, Tensor rstd) {
  if (x.elements() == 0) return;
  visit_device_float(x.dtype(), [&]<class T>() {
    const Rows<T> p = {.y = rows_of<T>(dx),
                       .rstd = data_of<Acc<T>>(rstd),
                       .x = rows_of<const T>(x),
                       .gate = rows_of<const T>(gate),
                       .dgate = rows_of<T>(dgate),
                       .dy = rows_of<const T>(dy),
                       .rows = row_count(x),
                       .width = static_cast<int>(x.extent(x.rank() - 1)),
                       .eps = {}};
    const bool aligned =
        p.y.aligned() && p.x.aligned() && p.gate.aligned() && p.dgate.aligned() && p.dy.aligned();
    for_norm_backward<T, 4>(p.width, aligned, [&]<int N, int kVecs, int kLanes>(int packs) {
      launch_kernel(context.stream, backward_kernel<T, N, kVecs, kLanes>,
                    norm_blocks<kVecs, kLanes>(p.rows, packs),
                    norm_grid<kVecs, kLanes>(packs).threads, 0, p, packs);
    });
  });
}

}  // namespace kintsugi::gpu
