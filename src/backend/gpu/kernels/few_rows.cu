// Matmuls with few rows: the time is that of reading b once. Every warp computes columns of c, one
// after the other, from rows of b that it streams through a ring in shared memory, so that many
// loads are always under way. Every lane reads only what it has copied itself. If b is constant,
// the ring is filled before the previous kernel has finished.
#include <algorithm>

#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"

namespace kintsugi::gpu {
namespace {

constexpr int kMaxRows = 4;  // of a; cuBLASLt is as fast for more
constexpr std::size_t kMaxShared = std::min(std::size_t{200} << 10, kSharedBytes);

// Two kinds of block. The multiprocessors have room for one block of each kind, but not for two of
// the same: a matmul fills its ring while the one before it still runs, and its blocks never gather
// on few multiprocessors. Deep blocks suit few columns.
template <bool kWide>
struct BlockSize {
  static constexpr int kWarps = kWide ? 32 : 16, kThreads = 32 * kWarps;
  // Loads of 512 bytes that a warp has under way.
  static constexpr bool kSmall = kSharedBytes < (std::size_t{200} << 10);
  static constexpr int kStages = kSmall ? (kWide ? 2 : 4) : (kWide ? 4 : 16);
};
// Two wide blocks need more registers than there are. Not every platform can be told.
[[maybe_unused]] constexpr int kWideRegisters = 40;
constexpr int kWideColumns = 17;  // columns per block from which it is wide

template <class T, class C>
struct FewRows {
  C* c;
  const T *a, *b;
  const C *bias, *residual;  // nullptr: none
  std::int64_t c_stride, a_stride, b_stride, residual_stride;
  int n, k;
  float scale, residual_scale;
  C* activated;  // SwiGLU of the two halves of a row of c; nullptr: none
  std::int64_t activated_stride;
  bool constant_b;
};

// The stream of a warp: chunks of 32 vectors of the rows of b for the columns `column`, `column` +
// kWarps, and so on up to `end`. With SwiGLU each is followed by the column `half` after it.
template <class T, bool kWide>
struct WeightStream {
  static constexpr int kWarps = BlockSize<kWide>::kWarps, kStages = BlockSize<kWide>::kStages;
  static constexpr int N = kVecSize<T>;
  const T* b;
  std::int64_t stride;
  int k, chunks, column, end, half, chunk, lane;
  bool second;
  Vec<T>* ring;  // this lane's vector of stage 0
  std::uint64_t policy;

  // Starts the next load, into a stage whose vector has been read.
  __device__ void start(int stage) {
    if (column < end) {
      const int at = (chunk * 32 + lane) * N;
      copy_async(ring + stage * 32, b + (column + (second ? half : 0)) * stride + at, at < k,
                 policy);
      if (++chunk == chunks) {
        chunk = 0;
        if (half == 0 || second) column += kWarps;
        second = half > 0 && !second;
      }
    }
    commit_copies();
  }
  __device__ void start_all() {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) start(stage);
  }
};

// Rows of a in shared memory, with zeros up to a whole chunk.
template <class T>
__device__ inline void load_rows(T* x, const T* a, std::int64_t stride, int rows, int k,
                                 int padded) {
  constexpr int N = kVecSize<T>;
  const int packs = padded / N;
  for (int i = static_cast<int>(threadIdx.x); i < rows * packs; i += static_cast<int>(blockDim.x)) {
    const int row = i / packs, at = i % packs * N;
    Vec<T> vec = {};
    if (at < k) vec = load_vec(a + row * stride + at);
    store_vec(x + row * padded + at, vec);
  }
}

// The product of the rows of a with one row of b; lane i has that of row i.
template <int kRows, class T, bool kWide>
__device__ inline float multiply(WeightStream<T, kWide>& weights, int& stage, const T* x,
                                 int padded) {
  constexpr int N = kVecSize<T>, kStages = BlockSize<kWide>::kStages;
  const int lane = weights.lane;
  float sum[kRows] = {}, mine = 0.0f;
#pragma unroll 4
  for (int chunk = 0; chunk < weights.chunks; ++chunk) {
    wait_for_copies<kStages - 1>();
    const Vec<T> w = weights.ring[stage * 32];
    weights.start(stage);
    stage = (stage + 1) % kStages;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Vec<T> row = load_vec(x + i * padded + (chunk * 32 + lane) * N);
#pragma unroll
      for (int v = 0; v < N; ++v) sum[i] += up(row.v[v]) * up(w.v[v]);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float total = warp_sum(sum[i]);
    if (lane == i) mine = total;
  }
  return mine;
}

// Bias and residual of lane i, for row i; read before the product, which takes longer.
template <int kRows, class T, class C>
__device__ inline float added_to(const FewRows<T, C>& p, int lane, int column) {
  float added = 0.0f;
  if (lane >= kRows) return added;
  if (p.residual != nullptr)
    added = p.residual_scale * up(p.residual[lane * p.residual_stride + column]);
  if (p.bias != nullptr) added += up(p.bias[column]);
  return added;
}

// kRows rows of a. Blocks have consecutive columns of c, or of its left half with SwiGLU.
template <class T, class C, int kRows, bool kWide>
__device__ inline void compute(const FewRows<T, C>& p) {
  using Block = BlockSize<kWide>;
  constexpr int N = kVecSize<T>, kWarps = Block::kWarps;
  unsigned char* const memory = dynamic_shared();
  allow_next();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int half = p.activated == nullptr ? 0 : p.n / 2;
  const std::int64_t columns = p.n - half;
  const int begin = static_cast<int>(columns * blockIdx.x / gridDim.x),
            end = static_cast<int>(columns * (blockIdx.x + 1) / gridDim.x);
  const int chunks = (p.k + 32 * N - 1) / (32 * N), padded = chunks * 32 * N;
  T* x = reinterpret_cast<T*>(memory + Block::kThreads * Block::kStages * 16);
  WeightStream<T, kWide> weights = {
      .b = p.b,
      .stride = p.b_stride,
      .k = p.k,
      .chunks = chunks,
      .column = begin + warp,
      .end = end,
      .half = half,
      .chunk = 0,
      .lane = lane,
      .second = false,
      .ring = reinterpret_cast<Vec<T>*>(memory) + warp * Block::kStages * 32 + lane,
      .policy = read_once()};
  if (p.constant_b) weights.start_all();
  wait_for_previous();
  if (!p.constant_b) weights.start_all();
  load_rows(x, p.a, p.a_stride, kRows, p.k, padded);
  __syncthreads();

  int stage = 0;
  for (int column = begin + warp; column < end; column += kWarps) {
    const float added = added_to<kRows>(p, lane, column),
                right_added = half == 0 ? 0.0f : added_to<kRows>(p, lane, column + half);
    const C left = down<C>(p.scale * multiply<kRows>(weights, stage, x, padded) + added);
    if (lane < kRows) p.c[lane * p.c_stride + column] = left;
    if (half == 0) continue;
    const C right = down<C>(p.scale * multiply<kRows>(weights, stage, x, padded) + right_added);
    if (lane >= kRows) continue;
    p.c[lane * p.c_stride + column + half] = right;
    const float gate = up(left);
    p.activated[lane * p.activated_stride + column] = down<C>(gate * Gate<C>(gate).on * up(right));
  }
}

template <class T, class C, int kRows>
__global__ void __launch_bounds__(BlockSize<false>::kThreads, 1) deep_kernel(FewRows<T, C> p) {
  compute<T, C, kRows, false>(p);
}
template <class T, class C, int kRows>
__global__ void KINTSUGI_REGISTERS(kWideRegisters) wide_kernel(FewRows<T, C> p) {
  compute<T, C, kRows, true>(p);
}

// Bytes of shared memory of a block.
template <class T, bool kWide>
std::size_t shared_bytes(std::int64_t rows, std::int64_t k) {
  constexpr std::int64_t kChunk = 32 * kVecSize<T>;
  return static_cast<std::size_t>(BlockSize<kWide>::kThreads * BlockSize<kWide>::kStages * 16 +
                                  rows * ceil_div(k, kChunk) * kChunk * sizeof(T));
}

template <class T, bool kWide, class C>
void launch_rows(const Context& context, void (*kernel)(FewRows<T, C>), const FewRows<T, C>& p,
                 int rows, int columns) {
  const std::size_t bytes = shared_bytes<T, kWide>(rows, p.k);
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), bytes);
  const int blocks = std::min(context.multiprocessors, ceil_div(columns, BlockSize<kWide>::kWarps));
  launch_overlapped(context, kernel, static_cast<unsigned>(blocks), BlockSize<kWide>::kThreads,
                    bytes, p);
}

template <class T, class C, int kRows>
void launch(const Context& context, const FewRows<T, C>& p) {
  const int columns = p.activated == nullptr ? p.n : p.n / 2;
  if constexpr (kRows == 1)
    if (columns >= kWideColumns * context.multiprocessors)
      return launch_rows<T, true>(context, wide_kernel<T, C, kRows>, p, kRows, columns);
  launch_rows<T, false>(context, deep_kernel<T, C, kRows>, p, kRows, columns);
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
      .residual_scale = static_cast<float>(o.accumulate ? 1.0 : o.residual_scale),
      .activated = data_of<C>(o.swiglu),
      .activated_stride = o.swiglu ? o.swiglu.stride(0) : 0,
      .constant_b = o.constant_b};
  switch (c.extent(0)) {
    case 1:
      return launch<T, C, 1>(context, p);
    case 2:
      return launch<T, C, 2>(context, p);
    case 3:
      return launch<T, C, 3>(context, p);
    default:
      return launch<T, C, 4>(context, p);
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
      o.gelu_input || c.dtype() == DType::F64 ||
      (c.dtype() != a.dtype() && c.dtype() != DType::F32) || !whole_words(a) || !whole_words(b) ||
      shared_bytes<float, false>(c.extent(0), a.extent(1)) > kMaxShared ||
      (o.bias && o.bias.dtype() != c.dtype()) ||
      (o.swiglu && (o.swiglu.dtype() != c.dtype() || o.swiglu.extent(1) * 2 != c.extent(1))))
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

}  // namespace kintsugi::gpu
