// Matmuls with a short inner dimension: the time is that of reading and writing c. A warp keeps its
// part of b in registers and walks down the rows of c, 16 rows of 32 columns at a time.
#include "backend/cuda/device.cuh"
#include "backend/cuda/low_rank.h"
#include "backend/cuda/mma.cuh"

namespace kintsugi::cuda {
namespace {

constexpr int kWarps = 8;              // of a block, side by side
constexpr int kWarpColumns = 32;       // of c
constexpr int kRowTiles = 8;           // of 16 rows, per block
constexpr std::int64_t kMinRows = 64;  // of c; few rows do not fill the GPU

template <class T>
struct LowRank {
  T* c;
  const T *a, *b, *residual;  // residual nullptr: none
  std::int64_t c_stride, a_stride, b_stride, residual_stride;
  std::int64_t m;
  int n;
  float scale, residual_scale;
};

template <class T>
__device__ inline unsigned bits_of(const Pack<T, 2>& pair) {
  unsigned bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

// Column `n` of the tensor core's tile j is this column of a warp's 32: so that the columns of one
// thread, two of each tile, are adjacent.
__device__ inline int column_of(int j, int n) { return n / 2 * 8 + j * 2 + n % 2; }

template <class T, int kDepth, bool kTransposed>
__global__ void __launch_bounds__(32 * kWarps) low_rank_kernel(LowRank<T> p) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int group = lane / 4, in_group = lane % 4;
  const int first_column = (static_cast<int>(blockIdx.x) * kWarps + warp) * kWarpColumns;
  unsigned b[kDepth][4][2] = {};
#pragma unroll
  for (int d = 0; d < kDepth; ++d)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int column = first_column + column_of(j, group);
        const int k = d * 16 + half * 8 + in_group * 2;
        if (column >= p.n) continue;
        if constexpr (kTransposed) {
          b[d][j][half] = bits_of(load<2>(p.b + column * p.b_stride + k));
        } else {
          const T* const at = p.b + k * p.b_stride + column;
          b[d][j][half] = bits_of(Pack<T, 2>{at[0], at[p.b_stride]});
        }
      }
  const int column = first_column + in_group * 8;  // of this thread
  const bool inside = column < p.n;
  for (int tile = 0; tile < kRowTiles; ++tile) {
    const std::int64_t row =
        (static_cast<std::int64_t>(blockIdx.y) * kRowTiles + tile) * 16 + group;
    if (row - group >= p.m) return;
    Pack<T, 8> added[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (p.residual != nullptr && inside && row + half * 8 < p.m)
        added[half] = load<8>(p.residual + (row + half * 8) * p.residual_stride + column);
    float sums[4][4] = {};
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      unsigned a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::int64_t from = row + i % 2 * 8;
        const T* const at = p.a + from * p.a_stride + d * 16 + i / 2 * 8 + in_group * 2;
        a[i] = from < p.m ? bits_of(load<2>(at)) : 0;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j)
        multiply_add<T>(sums[j], a[0], a[1], a[2], a[3], b[d][j][0], b[d][j][1]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!inside || row + half * 8 >= p.m) continue;
      Pack<T, 8> out;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        out.v[i] = down<T>(p.scale * sums[i / 2][half * 2 + i % 2] +
                           p.residual_scale * up(added[half].v[i]));
      store(p.c + (row + half * 8) * p.c_stride + column, out);
    }
  }
}

template <class T, bool kTransposed>
void launch(const Context& context, const LowRank<T>& p, std::int64_t k) {
  const dim3 blocks(static_cast<unsigned>(ceil_div(p.n, kWarps * kWarpColumns)),
                    static_cast<unsigned>(ceil_div<std::int64_t>(p.m, 16 * kRowTiles)));
  const auto with_depth = [&]<int kDepth>() {
    low_rank_kernel<T, kDepth, kTransposed><<<blocks, 32 * kWarps, 0, context.stream>>>(p);
    KINTSUGI_LAUNCHED();
  };
  switch (k / 16) {
    case 1:
      return with_depth.template operator()<1>();
    case 2:
      return with_depth.template operator()<2>();
    case 3:
      return with_depth.template operator()<3>();
    default:
      return with_depth.template operator()<4>();
  }
}

}  // namespace

bool matmul_low_rank(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
                     const MatmulOptions& o) {
  const auto whole_words = [](const Tensor& x) {
    return aligned16(x.data()) && x.stride(0) % 8 == 0 && x.extent(1) % 8 == 0;
  };
  if (c.rank() != 2 || size_of(c.dtype()) != 2 || a.dtype() != c.dtype() ||
      c.extent(0) < kMinRows || o.transpose_a || o.accumulate || o.bias || o.gelu || o.gelu_input ||
      o.swiglu || !whole_words(c) || (o.residual && !whole_words(o.residual)))
    return false;
  const std::int64_t k = a.extent(1);
  const auto whole_pairs = [](const Tensor& x) {
    return reinterpret_cast<std::uintptr_t>(x.data()) % 4 == 0 && x.stride(0) % 2 == 0;
  };
  if (k > 64 || k % 16 != 0 || !whole_pairs(a) || !whole_pairs(b)) return false;
  visit_device_float(c.dtype(), [&]<class T>() {
    if constexpr (sizeof(T) == 2) {
      const LowRank<T> p = {.c = data_of<T>(c),
                            .a = data_of<T>(a),
                            .b = data_of<T>(b),
                            .residual = data_of<T>(o.residual),
                            .c_stride = c.stride(0),
                            .a_stride = a.stride(0),
                            .b_stride = b.stride(0),
                            .residual_stride = o.residual ? o.residual.stride(0) : 0,
                            .m = c.extent(0),
                            .n = static_cast<int>(c.extent(1)),
                            .scale = static_cast<float>(o.scale),
                            .residual_scale = static_cast<float>(o.residual_scale)};
      o.transpose_b ? launch<T, true>(context, p, k) : launch<T, false>(context, p, k);
    }
  });
  return true;
}

}  // namespace kintsugi::cuda
