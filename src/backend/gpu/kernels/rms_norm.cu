// RMSNorm: y = x * rstd * w with rstd = 1 / sqrt(mean(x^2) + eps).
#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/launch.cuh"
#include "backend/gpu/kernels/norm.cuh"

namespace kintsugi::gpu {
namespace {

template <class T>
struct Forward {
  RowView<T> y;
  Acc<T>* rstd;
  RowView<const T> x;
  const T* weight;
  const Acc<T>* sums;  // sum of x^2 of each row; nullptr: the kernel computes it
  std::int64_t rows;
  std::int64_t width;  // of the row on all ranks
  Acc<T> eps;
  MaximaBits maxima = {};  // of y
};

// element() takes fewer registers than up().
template <int kVecs, class T, int N>
__device__ inline Acc<T> squares_of(const RowCache<T, N, kVecs>& x, int packs, int lane,
                                    int lanes) {
  Acc<T> squares = 0;
  for_packs<kVecs>(packs, lane, lanes, [&](int j, int i) {
    const Pack<T, N> in = x.at(j, i);
#pragma unroll
    for (int k = 0; k < N; ++k) squares += element(in, k) * element(in, k);
  });
  return squares;
}

template <class T, int N>
__device__ inline Pack<T, N> scaled(const Pack<T, N>& in, Acc<T> rstd, const Pack<T, N>& weight) {
  Pack<T, N> out;
#pragma unroll
  for (int k = 0; k < N; ++k) out.v[k] = down<T>(element(in, k) * rstd * element(weight, k));
  return out;
}

template <class T, int N, int kVecs, int kLanes>
__global__ void __launch_bounds__(kNormThreads<kLanes>) forward_kernel(Forward<T> p, int packs) {
  using A = Acc<T>;
  using Threads = Team<kLanes>;
  KINTSUGI_SHARED(A[32], shared);
  allow_next();
  const int lane = Threads::lane(), lanes = Threads::lanes();
  for_packs<kVecs>(packs, lane, lanes, [&](int, int i) { prefetch_line(p.weight + i * N); });
  wait_for_previous();
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * Threads::count() + Threads::index();
  const bool active = row < p.rows;
  const int my_packs = active ? packs : 0;
  RowCache<T, N, kVecs> x, weight;
  x.read(p.x[active ? row : 0], my_packs, lane, lanes);
  weight.read(p.weight, my_packs, lane, lanes);
  A squares = squares_of<kVecs>(x, my_packs, lane, lanes);
  squares = p.sums == nullptr ? Threads::sum(squares, shared) : p.sums[active ? row : 0];
  const A r = A(1) / sqrt(squares / A(p.width) + p.eps);
  if (!active) return;
  if (lane == 0) p.rstd[row] = r;
  T* y = p.y[row];
  for_packs<kVecs>(my_packs, lane, lanes,
                   [&](int j, int i) { store(y + i * N, scaled(x.at(j, i), r, weight.at(j, i))); });
}

// ---- the same with the maxima of y
// A team takes many rows, and reads the next one while it computes. It sums in the order of
// forward_kernel.
template <class T, int N, int kVecs, int kLanes>
__global__ void __launch_bounds__(kNormThreads<kLanes>)
    forward_maxima_kernel(Forward<T> p, int packs) {
  using A = Acc<T>;
  using Threads = Team<kLanes>;
  KINTSUGI_SHARED(A[32], shared);
  allow_next();
  const int lane = Threads::lane(), lanes = Threads::lanes();
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * Threads::count();
  RowCache<T, N, kVecs> weight, x, next;
  const auto read = [&](RowCache<T, N, kVecs>& cache, std::int64_t row) {
    if (row < p.rows) cache.read(p.x[row], packs, lane, lanes);
  };
  std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * Threads::count() + Threads::index();
  read(x, row);
  weight.read(p.weight, packs, lane, lanes);
  NormMaxima<T, N, kVecs, kLanes> maxima(p.maxima, packs);
  // All teams of a block make the same number of rounds. Only the last rows of the last one may be
  // missing.
  for (; row - Threads::index() < p.rows; row += step, x = next) {
    read(next, row + step);
    const int my_packs = row < p.rows ? packs : 0;
    const A squares = Threads::sum(squares_of<kVecs>(x, my_packs, lane, lanes), shared);
    const A r = A(1) / sqrt(squares / A(p.width) + p.eps);
    if (row >= p.rows) continue;
    if (lane == 0) p.rstd[row] = r;
    T* y = p.y[row];
    for_packs<kVecs>(packs, lane, lanes, [&](int j, int i) {
      const Pack<T, N> out = scaled(x.at(j, i), r, weight.at(j, i));
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
    launch_overlapped(context, forward_kernel<T, N, kVecs, kLanes>,
                      norm_blocks<kVecs, kLanes>(p.rows, packs),
                      norm_grid<kVecs, kLanes>(packs).threads, 0, p, packs);
}

template <class T>
struct Backward {
  RowView<T> dx;
  Acc<T>* partials;  // (blocks, width)
  RowView<const T> dy, x;
  const T* weight;
  const Acc<T>* rstd;
  RowView<const T> residual;  // base nullptr: none
  const Acc<T>* sums;         // sum of dy * w * x of each row; nullptr: the kernel computes it
  std::int64_t rows;
  std::int64_t width;      // of the row on all ranks
  MaximaBits maxima = {};  // of dx
};

// With g = dy * w and h = x * rstd: dx = rstd * (g - h * mean(g * h)), and dw = sum over the rows
// of dy * h.
template <class T, int N, int kVecs, int kLanes, bool kWeight, bool kMaxima>
__global__ void __launch_bounds__(kNormThreads<kLanes>) backward_kernel(Backward<T> p, int packs) {
  using A = Acc<T>;
  using Threads = Team<kLanes>;
  KINTSUGI_SHARED(A[32], shared);
  const int lane = Threads::lane(), lanes = Threads::lanes(), teams = Threads::count();
  std::conditional_t<kWeight, ColumnSums<A, N, kVecs, kLanes, 1>, NoColumnSums> sums(p.partials,
                                                                                     packs);
  std::conditional_t<kMaxima, NormMaxima<T, N, kVecs, kLanes>, NoMaxima> maxima(p.maxima, packs);
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * teams; first < p.rows;
       first += static_cast<std::int64_t>(gridDim.x) * teams) {
    const bool active = first + Threads::index() < p.rows;
    const std::int64_t row = active ? first + Threads::index() : 0;
    const int my_packs = active ? packs : 0;
    const bool has_residual = p.residual.base != nullptr;
    RowCache<T, N, kVecs> dy, x, residual;
    dy.read(p.dy[row], my_packs, lane, lanes);
    x.read(p.x[row], my_packs, lane, lanes);
    if (has_residual) residual.read(p.residual[row], my_packs, lane, lanes);
    const A r = p.rstd[row];
    A dot = 0;
    for_packs<kVecs>(my_packs, lane, lanes, [&](int j, int i) {
      const Pack<T, N> d = dy.at(j, i), in = x.at(j, i), w = load<N>(p.weight + i * N);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const A h = element(in, k) * r;
        sums.add(0, j, i, k, element(d, k) * h);
        dot += element(d, k) * element(w, k) * h;
      }
    });
    if (p.sums == nullptr)
      dot = Threads::sum(dot, shared);
    else
      dot = p.sums[row] * r;
    const A mean = dot / A(p.width);
    T* dx = p.dx[row];
    for_packs<kVecs>(my_packs, lane, lanes, [&](int j, int i) {
      const Pack<T, N> d = dy.at(j, i), in = x.at(j, i), w = load<N>(p.weight + i * N);
      const Pack<T, N> extra = has_residual ? residual.at(j, i) : Pack<T, N>{};
      Pack<T, N> out;
#pragma unroll
      for (int k = 0; k < N; ++k)
        out.v[k] = down<T>(element(extra, k) +
                           r * (element(d, k) * element(w, k) - element(in, k) * r * mean));
      store(dx + i * N, out);
      maxima.include(j, out);
    });
    if (active) maxima.finish_row(row);
  }
  sums.finish();
  maxima.finish();
}

template <class T, int N, int kVecs, int kLanes, bool kMaxima>
void launch_backward(const Context& context, Backward<T> p, Acc<T>* dweight, int packs) {
  const NormGrid grid = norm_grid<kVecs, kLanes>(packs);
  const auto kernel = dweight == nullptr ? backward_kernel<T, N, kVecs, kLanes, false, kMaxima>
                                         : backward_kernel<T, N, kVecs, kLanes, true, kMaxima>;
  const int blocks = resident_blocks(context, kernel, p.rows, grid), columns = packs * N;
  if (dweight != nullptr)
    p.partials =
        context.workspace.get<Acc<T>>(static_cast<std::size_t>(blocks) * columns, context.stream);
  launch_kernel(context.stream, kernel, blocks, grid.threads, 0, p, packs);
  add_partials(context, dweight, p.partials, blocks, columns, columns);
}

template <class T>
struct RowSums {
  Acc<T>* sums;
  RowView<const T> a, b;
  const T* weight;  // nullptr: 1
  std::int64_t rows;
};

// sums[row] = sum of a * b [* weight] over the row
template <class T, int N, int kVecs, int kLanes>
__global__ void __launch_bounds__(kNormThreads<kLanes>) row_sum_kernel(RowSums<T> p, int packs) {
  using A = Acc<T>;
  using Threads = Team<kLanes>;
  KINTSUGI_SHARED(A[32], shared);
  const int lane = Threads::lane(), lanes = Threads::lanes();
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * Threads::count() + Threads::index();
  const bool active = row < p.rows;
  const T *a = p.a[active ? row : 0], *b = p.b[active ? row : 0];
  A sum = 0;
  for_packs<kVecs>(active ? packs : 0, lane, lanes, [&](int, int i) {
    const Pack<T, N> x = load<N>(a + i * N), y = load<N>(b + i * N);
    Pack<T, N> w;
    if (p.weight != nullptr) w = load<N>(p.weight + i * N);
#pragma unroll
    for (int k = 0; k < N; ++k)
      sum += up(x.v[k]) * up(y.v[k]) * (p.weight == nullptr ? A(1) : up(w.v[k]));
  });
  sum = Threads::sum(sum, shared);
  if (active && lane == 0) p.sums[row] = sum;
}

void sum_rows(const Context& context, const Tensor& sums, const Tensor& a, const Tensor& b,
              const Tensor& weight) {
  if (a.elements() == 0) return;
  visit_device_float(a.dtype(), [&]<class T>() {
    const RowSums<T> p = {.sums = data_of<Acc<T>>(sums),
                          .a = rows_of<const T>(a),
                          .b = rows_of<const T>(b),
                          .weight = weight ? data_of<T>(weight) : nullptr,
                          .rows = row_count(a)};
    const bool aligned = p.a.aligned() && p.b.aligned() && (!p.weight || aligned16(p.weight));
    const int width = static_cast<int>(a.extent(a.rank() - 1));
    for_norm_forward<T>(width, aligned, [&]<int N, int kVecs, int kLanes>(int packs) {
      launch_kernel(context.stream, row_sum_kernel<T, N, kVecs, kLanes>,
                    norm_blocks<kVecs, kLanes>(p.rows, packs),
                    norm_grid<kVecs, kLanes>(packs).threads, 0, p, packs);
    });
  });
}

// `sums` are over all columns of a row of `width`; empty: x has all of them.
void run_forward(const Context& context, Tensor y, Tensor rstd, Tensor x, Tensor weight,
                 Tensor sums, std::int64_t width, double eps, const Maxima& maxima) {
  if (x.elements() == 0) return;
  visit_device_float(x.dtype(), [&]<class T>() {
    const Forward<T> p = {.y = rows_of<T>(y),
                          .rstd = data_of<Acc<T>>(rstd),
                          .x = rows_of<const T>(x),
                          .weight = data_of<T>(weight),
                          .sums = sums ? data_of<Acc<T>>(sums) : nullptr,
                          .rows = row_count(x),
                          .width = width,
                          .eps = static_cast<Acc<T>>(eps),
                          .maxima = maxima_bits(maxima)};
    const bool aligned = p.y.aligned() && p.x.aligned() && aligned16(p.weight);
    const int columns = static_cast<int>(x.extent(x.rank() - 1));
    constexpr int kVec = kVecSize<T>;
    const auto launch = [&]<int N, int kVecs, int kLanes>(int packs) {
      launch_with_maxima<kFindsMaxima<T, N, kVecs, kLanes>>(
          context, y, maxima,
          [&]<bool kMaxima>() { launch_forward<T, N, kVecs, kLanes, kMaxima>(context, p, packs); });
    };
    // Few rows, as in decoding: one access per thread.
    if (aligned && columns % kVec == 0 && columns > 32 * kVec && columns <= kRowBlock * kVec &&
        p.rows <= context.multiprocessors)
      return launch.template operator()<kVec, 1, 0>(columns / kVec);
    for_norm_forward<T>(columns, aligned, launch);
  });
}

void run_backward(const Context& context, Tensor dx, Tensor dweight, Tensor dy, Tensor x,
                  Tensor weight, Tensor rstd, Tensor residual_gradient, Tensor sums,
                  std::int64_t width, const Maxima& maxima) {
  if (x.elements() == 0) return;
  visit_device_float(x.dtype(), [&]<class T>() {
    const Backward<T> p = {.dx = rows_of<T>(dx),
                           .partials = nullptr,
                           .dy = rows_of<const T>(dy),
                           .x = rows_of<const T>(x),
                           .weight = data_of<T>(weight),
                           .rstd = data_of<Acc<T>>(rstd),
                           .residual = rows_of<const T>(residual_gradient),
                           .sums = sums ? data_of<Acc<T>>(sums) : nullptr,
                           .rows = row_count(x),
                           .width = width,
                           .maxima = maxima_bits(maxima)};
    const bool aligned = p.dx.aligned() && p.dy.aligned() && p.x.aligned() &&
                         p.residual.aligned() && aligned16(p.weight);
    Acc<T>* target = data_of<Acc<T>>(dweight);
    const int columns = static_cast<int>(x.extent(x.rank() - 1));
    for_norm_backward<T, 4>(columns, aligned, [&]<int N, int kVecs, int kLanes>(int packs) {
      constexpr bool kPossible = kFindsMaxima<T, N, kVecs, kLanes> && kVecs <= 2;
      launch_with_maxima<kPossible>(context, dx, maxima, [&]<bool kMaxima>() {
        launch_backward<T, N, kVecs, kLanes, kMaxima>(context, p, target, packs);
      });
    });
  });
}

}  // namespace

void rms_norm_forward(const Context& context, Tensor y, Tensor rstd, Tensor x, Tensor weight,
                      double eps, Maxima maxima) {
  run_forward(context, y, rstd, x, weight, {}, x.extent(x.rank() - 1), eps, maxima);
}
void rms_norm_backward(const Context& context, Tensor dx, Tensor dweight, Tensor dy, Tensor x,
                       Tensor weight, Tensor rstd, Tensor residual_gradient, Maxima maxima) {
  run_backward(context, dx, dweight, dy, x, weight, rstd, residual_gradient, {},
               x.extent(x.rank() - 1), maxima);
}

void rms_norm_partial(const Context& context, Tensor sums, Tensor x) {
  sum_rows(context, sums, x, x, {});
}
void rms_norm_merged(const Context& context, Tensor y, Tensor rstd, Tensor x, Tensor weight,
                     Tensor sums, std::int64_t width, double eps) {
  run_forward(context, y, rstd, x, weight, sums, width, eps, {});
}
void rms_norm_backward_partial(const Context& context, Tensor sums, Tensor dy, Tensor x,
                               Tensor weight) {
  sum_rows(context, sums, dy, x, weight);
}
void rms_norm_backward_merged(const Context& context, Tensor dx, Tensor dweight, Tensor dy,
                              Tensor x, Tensor weight, Tensor rstd, Tensor sums,
                              std::int64_t width) {
  run_backward(context, dx, dweight, dy, x, weight, rstd, {}, sums, width, {});
}

}  // namespace kintsugi::gpu
