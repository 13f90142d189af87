// Matmuls with few rows. Every warp computes some columns of c: it streams the same number of rows
// of b from memory and reads the rows of a from the cache. Before the previous kernel has finished,
// it already requests its first rows of b into the L2 cache.
#include "backend/cuda/device.cuh"
#include "backend/cuda/few_rows.h"
#include "backend/cuda/launch.cuh"

namespace kintsugi::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kMaxRows = 4;      // of a; cuBLASLt is as fast for more
constexpr int kLoads = 8;        // 16-byte loads of b that a lane has in flight
constexpr int kPrefetch = 8192;  // bytes of b that a warp requests early

template <class T, class C>
struct FewRows {
  C* c;
  const T *a, *b;
  const C *bias, *residual;  // nullptr: none
  std::int64_t c_stride, a_stride, b_stride, residual_stride;
  int n, k;
  float scale, residual_scale;
};

// 16 bytes that are read once.
template <class T>
__device__ inline Vec<T> load_streaming(const T* address) {
  unsigned w[4];
  asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "l"(address));
  Vec<T> vec;
  memcpy(&vec, w, sizeof(vec));
  return vec;
}

// kRows rows of a, kColumns columns of c (rows of b) per warp.
template <class T, class C, int kRows, int kColumns>
__global__ void __launch_bounds__(32 * kWarps) few_rows_kernel(FewRows<T, C> p) {
  constexpr int N = kVecSize<T>, kStep = 32 * N, kUnroll = kLoads / kColumns;
  allow_next();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int column0 = (static_cast<int>(blockIdx.x) * kWarps + warp) * kColumns;
  const T* b[kColumns];
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    b[j] = p.b + min(column0 + j, p.n - 1) * p.b_stride;
    const int bytes = min(kPrefetch / kColumns, p.k * static_cast<int>(sizeof(T)));
    for (int at = lane * 128; at < bytes; at += 32 * 128)
      prefetch_line(reinterpret_cast<const char*>(b[j]) + at);
  }
  wait_for_previous();

  // Lane i * kColumns + j stores row i, column j.
  const int my_row = lane / kColumns, my_column = column0 + lane % kColumns;
  const bool stores = lane < kRows * kColumns && my_column < p.n;
  float added = 0.0f;
  if (stores && p.residual != nullptr)
    added = p.residual_scale * up(p.residual[my_row * p.residual_stride + my_column]);
  if (stores && p.bias != nullptr) added += up(p.bias[my_column]);

  float sum[kRows][kColumns] = {};
  for (int k0 = lane * N; k0 < p.k; k0 += kUnroll * kStep) {
    Vec<T> weights[kUnroll][kColumns];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        weights[u][j] = {};
        if (k0 + u * kStep < p.k) weights[u][j] = load_streaming(b[j] + k0 + u * kStep);
      }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (k0 + u * kStep >= p.k) break;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const Vec<T> x = load_vec(p.a + i * p.a_stride + k0 + u * kStep);
#pragma unroll
        for (int j = 0; j < kColumns; ++j)
#pragma unroll
          for (int v = 0; v < N; ++v) sum[i][j] += up(x.v[v]) * up(weights[u][j].v[v]);
      }
    }
  }
  float mine = 0.0f;
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const float total = warp_sum(sum[i][j]);
      if (lane == i * kColumns + j) mine = total;
    }
  if (stores) p.c[my_row * p.c_stride + my_column] = down<C>(p.scale * mine + added);
}

template <class T, class C, int kRows, int kColumns>
void launch(const Context& context, const FewRows<T, C>& p) {
  launch_overlapped(context, few_rows_kernel<T, C, kRows, kColumns>,
                    static_cast<unsigned>(ceil_div(p.n, kWarps * kColumns)), 32 * kWarps, 0, p);
}

// More columns per warp read a less often; fewer make more warps.
template <class T, class C, int kRows>
void launch_rows(const Context& context, const FewRows<T, C>& p) {
  const int columns_per_block = p.n / context.multiprocessors / kWarps;
  if (columns_per_block >= 32)
    launch<T, C, kRows, 4>(context, p);
  else if (columns_per_block >= 8)
    launch<T, C, kRows, 2>(context, p);
  else
    launch<T, C, kRows, 1>(context, p);
}

template <class T, class C>
void run(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
         const MatmulOptions& o) {
  const Tensor added = o.accumulate ? c : o.residual;
  const FewRows<T, C> p = {
      .c = data_of<C>(c),
      .a = data_of<T>(a),
      .b = data_of<T>(b),
      .bias = data_of<C>(o.bias),
      .residual = data_of<C>(added),
      .c_stride = c.stride(0),
      .a_stride = a.stride(0),
      .b_stride = b.stride(0),
      .residual_stride = added ? added.stride(0) : 0,
      .n = static_cast<int>(c.extent(1)),
      .k = static_cast<int>(a.extent(1)),
      .scale = static_cast<float>(o.scale),
      .residual_scale = static_cast<float>(o.accumulate ? 1.0 : o.residual_scale)};
  switch (c.extent(0)) {
    case 1:
      return launch_rows<T, C, 1>(context, p);
    case 2:
      return launch_rows<T, C, 2>(context, p);
    case 3:
      return launch_rows<T, C, 3>(context, p);
    default:
      return launch_rows<T, C, 4>(context, p);
  }
}

}  // namespace

bool matmul_few_rows(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
                     const MatmulOptions& o) {
  const auto whole_words = [](const Tensor& x) {
    const std::size_t size = size_of(x.dtype());
    return aligned16(x.data()) && static_cast<std::size_t>(x.stride(0)) * size % 16 == 0 &&
           static_cast<std::size_t>(x.extent(1)) * size % 16 == 0;
  };
  if (c.rank() != 2 || c.extent(0) > kMaxRows || o.transpose_a || !o.transpose_b || o.gelu ||
      o.gelu_input || c.dtype() == DType::F64 || !whole_words(a) || !whole_words(b) ||
      (o.bias && o.bias.dtype() != c.dtype()))
    return false;
  visit_device_float(a.dtype(), [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) {
      if (c.dtype() == a.dtype())
        run<T, T>(context, c, a, b, o);
      else if constexpr (!std::is_same_v<T, float>)
        run<T, float>(context, c, a, b, o);
    }
  });
  return true;
}

}  // namespace kintsugi::cuda
