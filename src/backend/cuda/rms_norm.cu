// RMSNorm: y = x * rstd * w with rstd = 1 / sqrt(mean(x^2) + eps).
#include "backend/cuda/kernels.h"
#include "backend/cuda/norm.cuh"

namespace kintsugi::cuda {
namespace {

template <class T>
struct Forward {
  RowView<T> y;
  Acc<T>* rstd;
  RowView<const T> x;
  const T* weight;
  std::int64_t rows;
  int width;
  Acc<T> eps;
};

template <class T, int N, int kVecs, int kLanes>
__global__ void __launch_bounds__(kNormThreads<kLanes>) forward_kernel(Forward<T> p, int packs) {
  using A = Acc<T>;
  using Threads = Team<kLanes>;
  __shared__ A shared[32];
  const int lane = Threads::lane(), lanes = Threads::lanes();
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * Threads::count() + Threads::index();
  const bool there = row < p.rows;
  const int mine = there ? packs : 0;
  RowCache<T, N, kVecs> x;
  x.read(p.x[there ? row : 0], mine, lane, lanes);
  A squares = 0;
  for_packs<kVecs>(mine, lane, lanes, [&](int j, int i) {
    const Pack<T, N> in = x.at(j, i);
#pragma unroll
    for (int k = 0; k < N; ++k) squares += up(in.v[k]) * up(in.v[k]);
  });
  squares = Threads::sum(squares, shared);
  const A r = A(1) / sqrt(squares / A(p.width) + p.eps);
  if (!there) return;
  if (lane == 0) p.rstd[row] = r;
  T* y = p.y[row];
  for_packs<kVecs>(mine, lane, lanes, [&](int j, int i) {
    const Pack<T, N> in = x.at(j, i), w = load<N>(p.weight + i * N);
    Pack<T, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) out.v[k] = down<T>(up(in.v[k]) * r * up(w.v[k]));
    store(y + i * N, out);
  });
}

template <class T, int N, int kVecs, int kLanes>
void launch_forward(const Context& context, const Forward<T>& p, int packs) {
  const NormGrid grid = norm_grid<kVecs, kLanes>(packs);
  const unsigned blocks = static_cast<unsigned>(ceil_div<std::int64_t>(p.rows, grid.teams));
  forward_kernel<T, N, kVecs, kLanes><<<blocks, grid.threads, 0, context.stream>>>(p, packs);
  KINTSUGI_LAUNCHED();
}

template <class T>
struct Backward {
  RowView<T> dx;
  Acc<T>* partials;  // (blocks, width)
  RowView<const T> dy, x;
  const T* weight;
  const Acc<T>* rstd;
  RowView<const T> residual;  // base nullptr: none
  std::int64_t rows;
  int width;
};

// With g = dy * w and h = x * rstd: dx = rstd * (g - h * mean(g * h)), dw = sum over rows of dy *
// h.
template <class T, int N, int kVecs, int kLanes>
__global__ void __launch_bounds__(kNormThreads<kLanes>) backward_kernel(Backward<T> p, int packs) {
  using A = Acc<T>;
  using Threads = Team<kLanes>;
  __shared__ A shared[32];
  const int lane = Threads::lane(), lanes = Threads::lanes(), teams = Threads::count();
  ColumnSums<A, N, kVecs, kLanes, 1> sums(p.partials, packs);
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * teams; first < p.rows;
       first += static_cast<std::int64_t>(gridDim.x) * teams) {
    const bool there = first + Threads::index() < p.rows;
    const std::int64_t row = there ? first + Threads::index() : 0;
    const int mine = there ? packs : 0;
    RowCache<T, N, kVecs> dy, x;
    dy.read(p.dy[row], mine, lane, lanes);
    x.read(p.x[row], mine, lane, lanes);
    const A r = p.rstd[row];
    A dot = 0;
    for_packs<kVecs>(mine, lane, lanes, [&](int j, int i) {
      const Pack<T, N> d = dy.at(j, i), in = x.at(j, i), w = load<N>(p.weight + i * N);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const A h = up(in.v[k]) * r;
        sums.add(0, j, i, k, up(d.v[k]) * h);
        dot += up(d.v[k]) * up(w.v[k]) * h;
      }
    });
    const A mean = Threads::sum(dot, shared) / A(p.width);
    T* dx = p.dx[row];
    const T* residual = p.residual.base == nullptr ? nullptr : p.residual[row];
    for_packs<kVecs>(mine, lane, lanes, [&](int j, int i) {
      const Pack<T, N> d = dy.at(j, i), in = x.at(j, i), w = load<N>(p.weight + i * N);
      Pack<T, N> extra = {};
      if (residual != nullptr) extra = load<N>(residual + i * N);
      Pack<T, N> out;
#pragma unroll
      for (int k = 0; k < N; ++k)
        out.v[k] = down<T>(up(extra.v[k]) + r * (up(d.v[k]) * up(w.v[k]) - up(in.v[k]) * r * mean));
      store(dx + i * N, out);
    });
  }
  sums.finish();
}

template <class T, int N, int kVecs, int kLanes>
void launch_backward(const Context& context, Backward<T> p, Acc<T>* dweight, int packs) {
  const NormGrid grid = norm_grid<kVecs, kLanes>(packs);
  const auto kernel = backward_kernel<T, N, kVecs, kLanes>;
  const int blocks = backward_blocks(context, kernel, p.rows, grid);
  p.partials =
      context.workspace.get<Acc<T>>(static_cast<std::size_t>(blocks) * p.width, context.stream);
  kernel<<<blocks, grid.threads, 0, context.stream>>>(p, packs);
  KINTSUGI_LAUNCHED();
  add_partials(context, dweight, p.partials, blocks, p.width, p.width);
}

void check_shapes(const Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& rstd) {
  KINTSUGI_CHECK(y.shape() == x.shape() && weight.elements() == x.extent(x.rank() - 1) &&
                     rstd.elements() == row_count(x) && rstd.contiguous(),
                 "rms norm of {} to {} with {} and {}", to_string(x.shape()), to_string(y.shape()),
                 to_string(weight.shape()), to_string(rstd.shape()));
}

}  // namespace

void rms_norm_forward(const Context& context, Tensor y, Tensor rstd, Tensor x, Tensor weight,
                      double eps) {
  check_shapes(y, x, weight, rstd);
  if (x.elements() == 0) return;
  visit_device_float(x.dtype(), [&]<class T>() {
    const Forward<T> p = {.y = rows_of<T>(y),
                          .rstd = data_of<Acc<T>>(rstd),
                          .x = rows_of<const T>(x),
                          .weight = data_of<T>(weight),
                          .rows = row_count(x),
                          .width = static_cast<int>(x.extent(x.rank() - 1)),
                          .eps = static_cast<Acc<T>>(eps)};
    const bool aligned = p.y.aligned() && p.x.aligned() && aligned16(p.weight);
    for_norm_forward<T>(p.width, aligned, [&]<int N, int kVecs, int kLanes>(int packs) {
      launch_forward<T, N, kVecs, kLanes>(context, p, packs);
    });
  });
}

void rms_norm_backward(const Context& context, Tensor dx, Tensor dweight, Tensor dy, Tensor x,
                       Tensor weight, Tensor rstd, Tensor residual_gradient) {
  check_shapes(dx, x, weight, rstd);
  KINTSUGI_CHECK(
      dy.shape() == x.shape() && (!residual_gradient || residual_gradient.shape() == x.shape()),
      "rms norm of {}, its gradient {}", to_string(x.shape()), to_string(dy.shape()));
  if (x.elements() == 0) return;
  visit_device_float(x.dtype(), [&]<class T>() {
    const Backward<T> p = {.dx = rows_of<T>(dx),
                           .partials = nullptr,
                           .dy = rows_of<const T>(dy),
                           .x = rows_of<const T>(x),
                           .weight = data_of<T>(weight),
                           .rstd = data_of<Acc<T>>(rstd),
                           .residual = rows_of<const T>(residual_gradient),
                           .rows = row_count(x),
                           .width = static_cast<int>(x.extent(x.rank() - 1))};
    const bool aligned = p.dx.aligned() && p.dy.aligned() && p.x.aligned() &&
                         p.residual.aligned() && aligned16(p.weight);
    Acc<T>* target = data_of<Acc<T>>(dweight);
    for_norm_backward<T, 4>(p.width, aligned, [&]<int N, int kVecs, int kLanes>(int packs) {
      launch_backward<T, N, kVecs, kLanes>(context, p, target, packs);
    });
  });
}

}  // namespace kintsugi::cuda
