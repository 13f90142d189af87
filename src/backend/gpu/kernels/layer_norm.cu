// LayerNorm: y = (x - mean) * rstd * w + b.
#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/launch.cuh"
#include "backend/gpu/kernels/norm.cuh"

namespace kintsugi::gpu {
namespace {

template <class T>
struct Forward {
  RowView<T> y;
  Acc<T>*mean, *rstd;
  RowView<const T> x;
  const T *weight, *bias;
  std::int64_t rows;
  int width;
  Acc<T> eps;
  MaximaBits maxima = {};  // of y
};

// A row's mean and 1 / deviation, for all threads of its team. `shared` has space for 32 values.
template <class T>
struct Moments {
  Acc<T> mean, rstd;

  template <int N, int kVecs, int kLanes>
  __device__ Moments(const Forward<T>& p, const RowCache<T, N, kVecs>& x, Team<kLanes> team,
                     int packs, Acc<T>* shared) {
    using A = Acc<T>;
    const int lane = team.lane(), lanes = team.lanes();
    A total = 0;
    for_packs<kVecs>(packs, lane, lanes, [&](int j, int i) {
      const Pack<T, N> in = x.at(j, i);
#pragma unroll
      for (int k = 0; k < N; ++k) total += up(in.v[k]);
    });
    mean = team.sum(total, shared) / A(p.width);
    A squares = 0;
    for_packs<kVecs>(packs, lane, lanes, [&](int j, int i) {
      const Pack<T, N> in = x.at(j, i);
#pragma unroll
      for (int k = 0; k < N; ++k) squares += (up(in.v[k]) - mean) * (up(in.v[k]) - mean);
    });
    squares = team.sum(squares, shared);
    rstd = A(1) / sqrt(squares / A(p.width) + p.eps);
  }

  template <int N>
  __device__ Pack<T, N> normed(const Pack<T, N>& in, const Pack<T, N>& w,
                               const Pack<T, N>& b) const {
    Pack<T, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k)
      out.v[k] = down<T>((up(in.v[k]) - mean) * rstd * up(w.v[k]) + up(b.v[k]));
    return out;
  }
};

template <class T, int N, int kVecs, int kLanes>
__global__ void __launch_bounds__(kNormThreads<kLanes>) forward_kernel(Forward<T> p, int packs) {
  using A = Acc<T>;
  using Threads = Team<kLanes>;
  KINTSUGI_SHARED(A[32], shared);
  const int lane = Threads::lane(), lanes = Threads::lanes();
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * Threads::count() + Threads::index();
  const bool active = row < p.rows;
  const int my_packs = active ? packs : 0;
  RowCache<T, N, kVecs> x;
  x.read(p.x[active ? row : 0], my_packs, lane, lanes);
  const Moments<T> moments(p, x, Threads(), my_packs, shared);
  if (!active) return;
  if (lane == 0) {
    p.mean[row] = moments.mean;
    p.rstd[row] = moments.rstd;
  }
  T* y = p.y[row];
  for_packs<kVecs>(my_packs, lane, lanes, [&](int j, int i) {
    store(y + i * N,
          moments.normed(x.at(j, i), load<N>(p.weight + i * N), load<N>(p.bias + i * N)));
  });
}

// The same with the maxima of y. A team takes many rows, and reads the next one while it computes.
template <class T, int N, int kVecs, int kLanes>
__global__ void __launch_bounds__(kNormThreads<kLanes>)
    forward_maxima_kernel(Forward<T> p, int packs) {
  using Threads = Team<kLanes>;
  KINTSUGI_SHARED(Acc<T>[32], shared);
  allow_next();
  const int lane = Threads::lane(), lanes = Threads::lanes();
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * Threads::count();
  RowCache<T, N, kVecs> x, next;
  const auto read = [&](RowCache<T, N, kVecs>& cache, std::int64_t row) {
    if (row < p.rows) cache.read(p.x[row], packs, lane, lanes);
  };
  std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * Threads::count() + Threads::index();
  read(x, row);
  NormMaxima<T, N, kVecs, kLanes> maxima(p.maxima, packs);
  // All teams of a block make the same number of rounds. Only the last rows of the last one may be
  // missing.
  for (; row - Threads::index() < p.rows; row += step, x = next) {
    read(next, row + step);
    const Moments<T> moments(p, x, Threads(), row < p.rows ? packs : 0, shared);
    if (row >= p.rows) continue;
    if (lane == 0) {
      p.mean[row] = moments.mean;
      p.rstd[row] = moments.rstd;
    }
    T* y = p.y[row];
    for_packs<kVecs>(packs, lane, lanes, [&](int j, int i) {
      const Pack<T, N> out =
          moments.normed(x.at(j, i), load<N>(p.weight + i * N), load<N>(p.bias + i * N));
      store(y + i * N, out);
      maxima.include(j, out);
    });
    maxima.finish_row(row);
  }
  maxima.finish();
}

template <class T, int N, int kVecs, int kLanes, bool kMaxima>
void launch_forward(const Context& context, const Forward<T>& p, int packs) {
  if constexpr (kMaxima)
    launch_resident<kVecs, kLanes>(context, forward_maxima_kernel<T, N, kVecs, kLanes>, p, packs);
  else
    launch_kernel(context.stream, forward_kernel<T, N, kVecs, kLanes>,
                  norm_blocks<kVecs, kLanes>(p.rows, packs),
                  norm_grid<kVecs, kLanes>(packs).threads, 0, p, packs);
}

template <class T>
struct Backward {
  RowView<T> dx;
  Acc<T>* partials;  // (blocks, 2, width): weight, bias
  RowView<const T> dy, x;
  const T* weight;
  const Acc<T>*mean, *rstd;
  RowView<const T> residual;  // base nullptr: none
  std::int64_t rows;
  int width;
  MaximaBits maxima = {};  // of dx
};

// With g = dy * w and h = (x - mean) * rstd: dx = rstd * (g - mean(g) - h * mean(g * h)).
template <class T, int N, int kVecs, int kLanes, bool kMaxima>
__global__ void __launch_bounds__(kNormThreads<kLanes>) backward_kernel(Backward<T> p, int packs) {
  using A = Acc<T>;
  using Threads = Team<kLanes>;
  KINTSUGI_SHARED(A[64], shared);
  const int lane = Threads::lane(), lanes = Threads::lanes(), teams = Threads::count();
  ColumnSums<A, N, kVecs, kLanes, 2> sums(p.partials, packs);
  std::conditional_t<kMaxima, NormMaxima<T, N, kVecs, kLanes>, NoMaxima> maxima(p.maxima, packs);
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * teams; first < p.rows;
       first += static_cast<std::int64_t>(gridDim.x) * teams) {
    const bool active = first + Threads::index() < p.rows;
    const std::int64_t row = active ? first + Threads::index() : 0;
    const int my_packs = active ? packs : 0;
    RowCache<T, N, kVecs> dy, x;
    dy.read(p.dy[row], my_packs, lane, lanes);
    x.read(p.x[row], my_packs, lane, lanes);
    const A m = p.mean[row], r = p.rstd[row];
    A total = 0, dot = 0;
    for_packs<kVecs>(my_packs, lane, lanes, [&](int j, int i) {
      const Pack<T, N> d = dy.at(j, i), in = x.at(j, i), w = load<N>(p.weight + i * N);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const A h = (up(in.v[k]) - m) * r, g = up(d.v[k]) * up(w.v[k]);
        sums.add(0, j, i, k, up(d.v[k]) * h);
        sums.add(1, j, i, k, up(d.v[k]));
        total += g;
        dot += g * h;
      }
    });
    Threads::sum(total, dot, shared);
    const A mean_g = total / A(p.width), mean_gh = dot / A(p.width);
    T* dx = p.dx[row];
    const T* residual = p.residual.base == nullptr ? nullptr : p.residual[row];
    for_packs<kVecs>(my_packs, lane, lanes, [&](int j, int i) {
      const Pack<T, N> d = dy.at(j, i), in = x.at(j, i), w = load<N>(p.weight + i * N);
      Pack<T, N> extra = {};
      if (residual != nullptr) extra = load<N>(residual + i * N);
      Pack<T, N> out;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const A h = (up(in.v[k]) - m) * r;
        out.v[k] = down<T>(up(extra.v[k]) + r * (up(d.v[k]) * up(w.v[k]) - mean_g - h * mean_gh));
      }
      store(dx + i * N, out);
      maxima.include(j, out);
    });
    if (active) maxima.finish_row(row);
  }
  sums.finish();
  maxima.finish();
}

template <class T, int N, int kVecs, int kLanes, bool kMaxima>
void launch_backward(const Context& context, Backward<T> p, Acc<T>* dweight, Acc<T>* dbias,
                     int packs) {
  const NormGrid grid = norm_grid<kVecs, kLanes>(packs);
  const auto kernel = backward_kernel<T, N, kVecs, kLanes, kMaxima>;
  const int blocks = resident_blocks(context, kernel, p.rows, grid);
  p.partials =
      context.workspace.get<Acc<T>>(static_cast<std::size_t>(blocks) * 2 * p.width, context.stream);
  launch_kernel(context.stream, kernel, blocks, grid.threads, 0, p, packs);
  add_partials(context, dweight, p.partials, blocks, 2 * p.width, p.width);
  add_partials(context, dbias, p.partials + p.width, blocks, 2 * p.width, p.width);
}

}  // namespace

void layer_norm_forward(const Context& context, Tensor y, Tensor mean, Tensor rstd, Tensor x,
                        Tensor weight, Tensor bias, double eps, Maxima maxima) {
  if (x.elements() == 0) return;
  visit_device_float(x.dtype(), [&]<class T>() {
    const Forward<T> p = {.y = rows_of<T>(y),
                          .mean = data_of<Acc<T>>(mean),
                          .rstd = data_of<Acc<T>>(rstd),
                          .x = rows_of<const T>(x),
                          .weight = data_of<T>(weight),
                          .bias = data_of<T>(bias),
                          .rows = row_count(x),
                          .width = static_cast<int>(x.extent(x.rank() - 1)),
                          .eps = static_cast<Acc<T>>(eps),
                          .maxima = maxima_bits(maxima)};
    const bool aligned = p.y.aligned() && p.x.aligned() && aligned16(p.weight) && aligned16(p.bias);
    for_norm_forward<T>(p.width, aligned, [&]<int N, int kVecs, int kLanes>(int packs) {
      launch_with_maxima<kFindsMaxima<T, N, kVecs, kLanes>>(
          context, y, maxima,
          [&]<bool kMaxima>() { launch_forward<T, N, kVecs, kLanes, kMaxima>(context, p, packs); });
    });
  });
}

void layer_norm_backward(const Context& context, Tensor dx, Tensor dweight, Tensor dbias, Tensor dy,
                         Tensor x, Tensor weight, Tensor mean, Tensor rstd,
                         Tensor residual_gradient, Maxima maxima) {
  if (x.elements() == 0) return;
  visit_device_float(x.dtype(), [&]<class T>() {
    const Backward<T> p = {.dx = rows_of<T>(dx),
                           .partials = nullptr,
                           .dy = rows_of<const T>(dy),
                           .x = rows_of<const T>(x),
                           .weight = data_of<T>(weight),
                           .mean = data_of<Acc<T>>(mean),
                           .rstd = data_of<Acc<T>>(rstd),
                           .residual = rows_of<const T>(residual_gradient),
                           .rows = row_count(x),
                           .width = static_cast<int>(x.extent(x.rank() - 1)),
                           .maxima = maxima_bits(maxima)};
    const bool aligned = p.dx.aligned() && p.dy.aligned() && p.x.aligned() &&
                         p.residual.aligned() && aligned16(p.weight);
    Acc<T>*weight_target = data_of<Acc<T>>(dweight), *bias_target = data_of<Acc<T>>(dbias);
    // Two sums per column leave no registers for several packs of a row per thread of a warp.
    for_norm_backward<T, 1>(p.width, aligned, [&]<int N, int kVecs, int kLanes>(int packs) {
      constexpr bool kPossible = kFindsMaxima<T, N, kVecs, kLanes> && kVecs <= 2;
      launch_with_maxima<kPossible>(context, dx, maxima, [&]<bool kMaxima>() {
        launch_backward<T, N, kVecs, kLanes, kMaxima>(context, p, weight_target, bias_target,
                                                      packs);
      });
    });
  });
}

}  // namespace kintsugi::gpu
