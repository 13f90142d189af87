// Matmuls of the rows of each expert, with products of matrices in shared memory: for GPUs whose
// warpgroups have them. Two warpgroups compute the upper and the lower half of a tile. Slices of 64
// terms, or 128 in fp8, are in a ring: while one is multiplied, the next are copied. The products
// of fp8 numbers are exact only to about 14 bits of their sum: unless that suffices, a slice has a
// sum of its own, which is added to the others in fp32.
#include "backend/gpu/kernels/experts/grouped.cuh"
#include "backend/gpu/kernels/fragments.cuh"

namespace kintsugi::gpu {

#if KINTSUGI_WARPGROUPS

namespace {

constexpr int kGroup = 128, kThreads = 2 * kGroup;  // threads of a warpgroup, of a block
constexpr int kRows = 128, kColumns = 256;
constexpr int kWords = 8;                     // 16-byte words of a row of a square
constexpr int kCopyRows = kThreads / kWords;  // that the block copies at a time
template <class E>
inline constexpr int kSlice = 128 / sizeof(E);  // terms
template <class E>
inline constexpr int kWord = 16 / sizeof(E);  // elements

// An operand's part of a slice: squares of 64 rows of the operand by the terms of a slice, or of 64
// terms by 64 rows of the operand.
template <class E, int kSquares>
struct Part {
  using Square = SharedTile<E, 64, kSlice<E>>;
  static constexpr int kBytes = sizeof(Square);
  static_assert(kBytes == 64 * 128);
  Square square[kSquares];

  __device__ SharedMatrix matrix(int first) const { return {&square[first], kBytes}; }
};

// A ring of slices. Two stages are being read, those of the last two products; the next slices are
// copied to the others.
constexpr int kStages = 4, kAhead = kStages - 2;
using Sums = float[kColumns / 2];

template <class E>
struct Stage {
  Part<E, kRows / 64> a;
  Part<E, kColumns / 64> b;
};

// 128 bytes of each row of a warp's results on their way to memory; rows begin in different banks.
struct Results {
  static constexpr int kBytes = 128, kStride = kBytes + 16;
  unsigned char rows[16][kStride];
};

template <class E>
struct Shared {
  Stage<E> stages[kStages];
  Results results[kThreads / 32];

  static constexpr std::size_t kAlignment = 1024;
  static __device__ Shared& get() {
    const auto address = reinterpret_cast<std::uintptr_t>(dynamic_shared());
    return *reinterpret_cast<Shared*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }
  static constexpr std::size_t bytes(std::size_t behind) {
    return sizeof(Shared) + kAlignment + behind;
  }
};

// Which words a thread copies: this one of every kCopyRows-th row.
struct CopyPlace {
  int row = static_cast<int>(threadIdx.x) / kWords, word = static_cast<int>(threadIdx.x) % kWords;
};

// Copies squares of 64 rows each with the terms from `term` on. from(i) is the address of term 0 of
// the i-th row that this thread copies; null: zeros.
template <class E, int kSquares, class F>
__device__ inline void copy_rows(Part<E, kSquares>& part, const E* any, int term, int terms,
                                 F&& from) {
  const CopyPlace own;
  const int column = term + own.word * kWord<E>;
#pragma unroll
  for (int i = 0; i < 64 * kSquares / kCopyRows; ++i) {
    const int row = own.row + i * kCopyRows;
    const E* const x = from(i);
    const bool present = x != nullptr && column < terms;
    copy_async(part.square[row / 64].at(row % 64, own.word * kWord<E>), present ? x + column : any,
               present);
  }
}

// Copies 64 terms, which are rows of x, with 64 columns for each square. from(i) is the address of
// column 0 of the i-th term that this thread copies; null: zeros.
template <class T, int kSquares, class F>
__device__ inline void copy_terms(Part<T, kSquares>& part, const T* any, int column, int columns,
                                  F&& from) {
  const CopyPlace own;
#pragma unroll
  for (int i = 0; i < 64 / kCopyRows; ++i) {
    const T* const x = from(i);
#pragma unroll
    for (int square = 0; square < kSquares; ++square) {
      const int at = column + square * 64 + own.word * 8;
      const bool present = x != nullptr && at < columns;
      copy_async(part.square[square].at(own.row + i * kCopyRows, own.word * 8),
                 present ? x + at : any, present);
    }
  }
}

// Begins the copies of the first slices. copy(slice, stage) begins those of one.
template <class E, class Copy>
__device__ inline void begin_slices(Shared<E>& shared, int slices, Copy&& copy) {
#pragma unroll
  for (int slice = 0; slice < kAhead; ++slice) {
    if (slice < slices) copy(slice, shared.stages[slice]);
    commit_copies();
  }
}

// Begins the product of a slice, which the first one's replaces or the next ones' is added to. The
// next 16 terms (32 in fp8) are in 16 rows of 128 bytes, or 32 bytes of every row.
template <class E, bool kTermsA, bool kTermsB, int kSums>
__device__ inline void begin_slice(float (&sums)[kSums], SharedMatrix a, SharedMatrix b,
                                   bool first) {
  order_products();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    begin_product<E, kTermsA, kTermsB>(sums, a, b, !first || k > 0);
    a.advance(kTermsA ? 16 * 128 : 32);
    b.advance(kTermsB ? 16 * 128 : 32);
  }
  commit_products();
}

// sums = the products of `slices` slices, of which the first are being copied. Afterwards, nothing
// reads the ring. kInFull: the sums of slices are added in fp32, half of the columns at a time.
template <class E, bool kTermsA, bool kTermsB, bool kInFull, class Copy>
__device__ inline void multiply_slices(Sums& sums, Shared<E>& shared, int slices, Copy&& copy) {
  const int half = static_cast<int>(threadIdx.x) / kGroup;
  if constexpr (kInFull) {
#pragma unroll
    for (float& sum : sums) sum = 0;
  }
  for (int slice = 0; slice < slices; ++slice) {
    wait_for_copies<kAhead - 1>();
    publish_to_products();
    __syncthreads();  // the slice is complete, and the products of the one before the last are done
    const Stage<E>& stage = shared.stages[slice % kStages];
    const auto copy_next = [&] {
      if (slice + kAhead < slices) copy(slice + kAhead, shared.stages[(slice + kAhead) % kStages]);
      commit_copies();
    };
    if constexpr (kInFull) {
      constexpr int kHalf = kColumns / 4;
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        float part[kHalf];
        begin_slice<E, kTermsA, kTermsB>(part, stage.a.matrix(half), stage.b.matrix(2 * side),
                                         true);
        if (side == 0) copy_next();
        wait_for_sums(part);
#pragma unroll
        for (int i = 0; i < kHalf; ++i) sums[side * kHalf + i] += part[i];
      }
    } else {
      begin_slice<E, kTermsA, kTermsB>(sums, stage.a.matrix(half), stage.b.matrix(0), slice == 0);
      copy_next();
      wait_for_products<1>();
    }
  }
  wait_for_products<0>();
  __syncthreads();
}

// Calls f(row, column, values) for packs of 16 bytes of the block's tile, rounded to C. A warp's 16
// rows go through its own shared memory, 128 bytes at a time, so that it stores whole lines.
template <class C, class E, class F>
__device__ inline void for_results(Shared<E>& shared, const Sums& sums, F&& f) {
  constexpr int kPack = 16 / sizeof(C), kInLine = Results::kBytes / sizeof(C);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  Results& results = shared.results[warp];
  const auto at = [&](int row, int column) {
    return reinterpret_cast<C*>(results.rows[row]) + column;
  };
#pragma unroll
  for (int line = 0; line < kColumns / kInLine; ++line) {
#pragma unroll
    for (int j = 0; j < kInLine / 8; ++j)
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        const int first = 4 * (line * kInLine / 8 + j) + 2 * below;
        Pack<C, 2> pair;
        pair.v[0] = down<C>(sums[first]);
        pair.v[1] = down<C>(sums[first + 1]);
        store(at(lane / 4 + 8 * below, 8 * j + 2 * (lane % 4)), pair);
      }
    sync_team();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 8 + 4 * i, column = lane % 8 * kPack;
      f(16 * warp + row, line * kInLine + column, load<kPack>(at(row, column)));
    }
    sync_team();
  }
}

// ---- c = a op(b[expert])
using Tiles = ExpertTiles<kRows, kColumns>;

// Copies the slices of a tile.
template <class T, class E, bool kTransposed>
struct MatmulCopies {
  __device__ MatmulCopies(const GroupedMatmul<T, E>& matmul, const typename Tiles::Tile& at)
      : p(matmul), matrix(matmul.b + at.expert * matmul.b_expert), column(at.column) {
#pragma unroll
    for (int q = 0; q < kSources; ++q) {
      const int row = at.row + own.row + q * kCopyRows;
      sources[q] = row < at.end ? p.rows.source(row, p.tokens_a) : -1;
    }
  }
  __device__ void operator()(int slice, Stage<E>& to) const {
    const int term = slice * kSlice<E>;
    copy_rows(to.a, p.a, term, p.k, [&](int q) {
      return sources[q] < 0 ? nullptr : p.a + static_cast<std::int64_t>(sources[q]) * p.a_stride;
    });
    if constexpr (kTransposed)
      copy_rows(to.b, p.b, term, p.k, [&](int q) {
        const int row = column + own.row + q * kCopyRows;
        return row < p.n ? matrix + static_cast<std::int64_t>(row) * p.b_stride : nullptr;
      });
    else
      copy_terms(to.b, p.b, column, p.n, [&](int q) {
        const int row = term + own.row + q * kCopyRows;
        return row < p.k ? matrix + static_cast<std::int64_t>(row) * p.b_stride : nullptr;
      });
  }

  static constexpr int kSources = kRows / kCopyRows;
  const GroupedMatmul<T, E>& p;
  const E* matrix;
  int column;
  CopyPlace own;
  int sources[kSources];
};

// Multiplies the sums of fp8 numbers by the scales of their rows and columns, which are in memory
// for whole groups of 8 columns.
template <class T>
__device__ inline void scale_sums(Sums& sums, const GroupedMatmul<T, Fp8>& p,
                                  const typename Tiles::Tile& at) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  float of_rows[2];
#pragma unroll
  for (int below = 0; below < 2; ++below) {
    const int row = at.row + 16 * warp + lane / 4 + 8 * below;
    of_rows[below] = row < at.end ? p.a_scales[p.rows.source(row, p.tokens_a)] : 0.0f;
  }
  const float* const of_columns = p.b_scales + at.expert * p.n + at.column + 2 * (lane % 4);
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    if (j % 8 == 0) sync_team();  // the scales of all columns at once would need more registers
    Pack<float, 2> pair = {};
    if (at.column + 8 * j < p.n) pair = load<2>(of_columns + 8 * j);
#pragma unroll
    for (int below = 0; below < 2; ++below)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& sum = sums[4 * j + 2 * below + i];
        sum = sum * of_rows[below] * pair.v[i];
      }
  }
}

template <class T, class E, bool kTransposed, bool kInFull>
__global__ void __launch_bounds__(kThreads, 1) matmul_kernel(GroupedMatmul<T, E> p) {
  using Copies = MatmulCopies<T, E, kTransposed>;
  Shared<E>& shared = Shared<E>::get();
  const Tiles tiles(&shared + 1, p.rows, p.n);
  const int slices = (p.k + kSlice<E> - 1) / kSlice<E>, step = static_cast<int>(gridDim.x);
  const int count = tiles.count();
  int i = static_cast<int>(blockIdx.x);
  if (i >= count) return;
  begin_slices(shared, slices, Copies(p, tiles[i]));
  for (; i < count; i += step) {
    const typename Tiles::Tile at = tiles[i];
    Sums sums;
    multiply_slices<E, false, !kTransposed, kInFull>(sums, shared, slices, Copies(p, at));
    if (i + step < count) begin_slices(shared, slices, Copies(p, tiles[i + step]));
    if constexpr (p.kHasScales) scale_sums(sums, p, at);
    T* const c = p.c + static_cast<std::int64_t>(at.row) * p.c_stride + at.column;
    const int rows = at.end - at.row, columns = p.n - at.column;
    if (p.stores_sums()) {
      for_results<T>(shared, sums, [&](int row, int column, const Pack<T, 8>& pack) {
        if (row < rows && column < columns)
          store(c + static_cast<std::int64_t>(row) * p.c_stride + column, pack);
      });
      continue;
    }
    for_results<float>(shared, sums, [&](int row, int column, const Pack<float, 4>& values) {
      if (row >= rows || column >= columns) return;
      T* const to = c + static_cast<std::int64_t>(row) * p.c_stride + column;
      Pack<T, 4> pack = {};
      if (p.accumulate) pack = load<4>(to);
#pragma unroll
      for (int e = 0; e < 4; ++e) pack.v[e] = p.result(pack.v[e], values.v[e]);
      store(to, pack);
    });
  }
}

// ---- dw[expert] [+]= a^T b: blocks (tile of a matrix, expert)
template <class T, class C>
__global__ void __launch_bounds__(kThreads, 1) gradient_kernel(GroupedGradient<T, C> p) {
  Shared<T>& shared = Shared<T>::get();
  const int expert = static_cast<int>(blockIdx.y);
  const int begin = p.rows.offsets[expert], count = p.rows.offsets[expert + 1] - begin;
  if (count == 0 && p.accumulate) return;
  const TileStart at = tile_start<kRows, kColumns>(
      static_cast<int>(blockIdx.x), (p.m + kRows - 1) / kRows, (p.n + kColumns - 1) / kColumns);
  const CopyPlace own;
  const auto copy = [&](int slice, Stage<T>& to) {
    int sources[64 / kCopyRows];
    const bool gathers = p.tokens_a || p.tokens_b;
#pragma unroll
    for (int q = 0; q < 64 / kCopyRows; ++q) {
      const int row = slice * kSlice<T> + own.row + q * kCopyRows;
      sources[q] = row >= count ? -1 : gathers ? p.rows.source(begin + row, true) : 0;
    }
    const auto row_of = [&](const T* x, int stride, bool tokens, int q) -> const T* {
      if (sources[q] < 0) return nullptr;
      const int row = begin + slice * kSlice<T> + own.row + q * kCopyRows;
      return x + static_cast<std::int64_t>(tokens ? sources[q] : row) * stride;
    };
    copy_terms(to.a, p.a, at.row, p.m,
               [&](int q) { return row_of(p.a, p.a_stride, p.tokens_a, q); });
    copy_terms(to.b, p.b, at.column, p.n,
               [&](int q) { return row_of(p.b, p.b_stride, p.tokens_b, q); });
  };
  Sums sums;
  if (count == 0) {
#pragma unroll
    for (float& sum : sums) sum = 0;
  }
  const int slices = (count + kSlice<T> - 1) / kSlice<T>;
  begin_slices(shared, slices, copy);
  multiply_slices<T, true, true, false>(sums, shared, slices, copy);
  C* const dw =
      p.dw + expert * p.dw_expert + static_cast<std::int64_t>(at.row) * p.dw_stride + at.column;
  for_results<float>(shared, sums, [&](int row, int column, const Pack<float, 4>& values) {
    if (at.row + row >= p.m || at.column + column >= p.n) return;
    C* const to = dw + static_cast<std::int64_t>(row) * p.dw_stride + column;
    if constexpr (std::is_same_v<C, float>) {
      // The memory adds, and the block does not wait for it.
      p.accumulate ? add_to_memory(to, values.v) : store(to, values);
    } else {
      Pack<C, 4> pack = {};
      if (p.accumulate) pack = load<4>(to);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        pack.v[e] = down<C>(p.accumulate ? up(pack.v[e]) + values.v[e] : values.v[e]);
      store(to, pack);
    }
  });
}

// ---- launches
template <class Kernel>
void allow_shared(Kernel kernel, std::size_t bytes) {
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), bytes);
}

template <bool kTransposed, bool kInFull, class T, class E>
bool launch_matmul(const Context& context, const GroupedMatmul<T, E>& p, std::int64_t rows) {
  const std::size_t bytes = Shared<E>::bytes(Tiles::shared_bytes(p.rows));
  if (bytes > kSharedBytes) return false;
  const std::int64_t blocks =
      std::min<std::int64_t>(Tiles::most(rows, p.rows.experts, p.n), context.multiprocessors);
  const auto kernel = matmul_kernel<T, E, kTransposed, kInFull>;
  allow_shared(kernel, bytes);
  launch_kernel(context.stream, kernel, static_cast<unsigned>(blocks), kThreads, bytes, p);
  return true;
}

template <class T, class C>
void launch_gradient(const Context& context, const GroupedGradient<T, C>& p) {
  constexpr std::size_t kBytes = Shared<T>::bytes(0);
  static_assert(kBytes <= kSharedBytes);
  const dim3 blocks(static_cast<unsigned>(ceil_div(p.m, kRows) * ceil_div(p.n, kColumns)),
                    static_cast<unsigned>(p.rows.experts));
  allow_shared(gradient_kernel<T, C>, kBytes);
  launch_kernel(context.stream, gradient_kernel<T, C>, blocks, kThreads, kBytes, p);
}

}  // namespace

bool warpgroup_grouped_matmul(const Context& context, const Tensor& c, const Tensor& a,
                              const Tensor& b, const ExpertRows& rows,
                              const GroupedOptions& options) {
  if (!context.warpgroups) return false;
  return visit_matrix_type(a.dtype(), [&]<class T>() {
    const GroupedMatmul<T> p(c, a, b, rows, options);
    const std::int64_t most = rows.rows.elements();
    return options.transpose_b ? launch_matmul<true, false>(context, p, most)
                               : launch_matmul<false, false>(context, p, most);
  });
}

bool warpgroup_grouped_fp8(const Context& context, const Tensor& c, const Quantized& a,
                           const Quantized& b, const ExpertRows& rows,
                           const GroupedOptions& options) {
  if (!context.warpgroups) return false;
  return visit_matrix_type(c.dtype(), [&]<class T>() {
    const GroupedMatmul<T, Fp8> p(c, a, b, rows, options);
    const std::int64_t most = rows.rows.elements();
    return options.fast_accumulation ? launch_matmul<true, false>(context, p, most)
                                     : launch_matmul<true, true>(context, p, most);
  });
}

bool warpgroup_grouped_gradient(const Context& context, const Tensor& dw, const Tensor& a,
                                const Tensor& b, const ExpertRows& rows,
                                const GroupedOptions& options) {
  if (!context.warpgroups) return false;
  return visit_matrix_type(a.dtype(), [&]<class T>() {
    if (dw.dtype() == a.dtype())
      launch_gradient<T, T>(context, {dw, a, b, rows, options});
    else
      launch_gradient<T, float>(context, {dw, a, b, rows, options});
    return true;
  });
}

#else

bool warpgroup_grouped_matmul(const Context&, const Tensor&, const Tensor&, const Tensor&,
                              const ExpertRows&, const GroupedOptions&) {
  return false;
}
bool warpgroup_grouped_fp8(const Context&, const Tensor&, const Quantized&, const Quantized&,
                           const ExpertRows&, const GroupedOptions&) {
  return false;
}
bool warpgroup_grouped_gradient(const Context&, const Tensor&, const Tensor&, const Tensor&,
                                const ExpertRows&, const GroupedOptions&) {
  return false;
}

#endif

}  // namespace kintsugi::gpu
