// Kernels of retention between its matmuls: tables of decays, scaled copies, the scan over chunks,
// the decay of scores. Also the complete forward of a single token.
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"
#include "backend/gpu/kernels/retention.cuh"
#include "backend/gpu/retention.h"

namespace kintsugi::gpu {
namespace {

// One warp per row, kTeams rows per block.
constexpr int kTeams = 8;
constexpr int kLanes = 32;
constexpr int kBlock = kLanes * kTeams;

dim3 row_block() { return {kLanes, kTeams}; }
unsigned row_blocks(std::int64_t rows) {
  KINTSUGI_CHECK(rows < (std::int64_t{1} << 31), "retention of {} rows", rows);
  return static_cast<unsigned>(ceil_div<std::int64_t>(rows, kTeams));
}
__device__ inline unsigned my_row() { return blockIdx.x * kTeams + threadIdx.y; }

template <class A>
__global__ void __launch_bounds__(256)
    tables_kernel(A* powers, A* rows, const float* decays, int length, double scale,
                  std::int64_t first_position) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  if (i > length) return;
  const double decay = decays[head];
  powers[static_cast<std::int64_t>(head) * (length + 1) + i] =
      static_cast<A>(pow(decay, double(i)));
  if (i < length)
    rows[static_cast<std::int64_t>(head) * length + i] =
        static_cast<A>(row_factor(scale, decay, first_position + i));
}

// The tables, and the bounds of chunks.
template <class A>
struct Decays {
  Decays(const RetentionWorkspace& buffers, const RetentionSizes& n)
      : powers(data_of<A>(buffers.powers)),
        rows(data_of<A>(buffers.rows)),
        length(static_cast<int>(n.length)),
        chunk(static_cast<int>(n.chunk_tokens())),
        chunks(static_cast<int>(n.chunks())) {}
  __device__ const A* powers_of(int head) const {
    return powers + static_cast<std::int64_t>(head) * (length + 1);
  }
  __device__ A row(int head, int token) const {
    return rows[static_cast<std::int64_t>(head) * length + token];
  }
  __device__ int tokens(int index) const { return min(chunk, length - index * chunk); }
  __device__ A factor(RetentionFactor kind, int head, int token) const {
    const int index = token / chunk, i = token - index * chunk;
    return kind == RetentionFactor::FromState ? row(head, token) * powers_of(head)[i + 1]
                                              : powers_of(head)[tokens(index) - 1 - i];
  }
  const A *powers, *rows;
  int length, chunk, chunks;
};

// A (batch, length, heads, dim) tensor.
template <class T>
struct HeadView {
  HeadView() = default;
  explicit HeadView(const Tensor& x)
      : base(data_of<std::remove_const_t<T>>(x)),
        sequence(x.stride(0)),
        token(x.stride(1)),
        head(x.stride(2)) {}
  __device__ T* at(int b, int i, int h) const { return base + b * sequence + i * token + h * head; }
  bool aligned() const {
    return aligned16(base) && (sequence | token | head) * sizeof(T) % 16 == 0;
  }
  T* base = nullptr;
  std::int64_t sequence = 0, token = 0, head = 0;
};

template <class T>
struct Scaling {
  HeadView<T> to;
  HeadView<const T> from;
  RetentionFactor factor;
};

// blockIdx.y selects `first` or `second`.
template <class T, int N>
__global__ void __launch_bounds__(kBlock)
    scale_kernel(Scaling<T> first, Scaling<T> second, Decays<Acc<T>> decays, unsigned rows,
                 int heads, int packs) {
  const unsigned row = my_row();
  if (row >= rows) return;
  const Scaling<T>& p = blockIdx.y == 0 ? first : second;
  const int h = static_cast<int>(row % heads), token = static_cast<int>(row / heads);
  const int b = token / decays.length, i = token - b * decays.length;
  const Acc<T> factor = decays.factor(p.factor, h, i);
  const T* from = p.from.at(b, i, h);
  T* to = p.to.at(b, i, h);
  for (int pack = static_cast<int>(threadIdx.x); pack < packs; pack += kLanes) {
    Pack<T, N> values = load<N>(from + pack * N);
#pragma unroll
    for (int k = 0; k < N; ++k) values.v[k] = down<T>(factor * up(values.v[k]));
    store(to + pack * N, values);
  }
}

// Each thread scans N elements of one state over its chunks. Loads of several chunks are in flight
// at a time: only the sums depend on the previous chunk.
template <class T, int N>
__global__ void __launch_bounds__(256)
    scan_kernel(T* slots, const Acc<T>* given, Decays<Acc<T>> decays, int batch, int heads,
                std::int64_t size, bool reverse) {
  using A = Acc<T>;
  constexpr int kAhead = 8;
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (i >= size) return;
  const int head = static_cast<int>(blockIdx.y) / batch, b = static_cast<int>(blockIdx.y) % batch;
  const int chunks = decays.chunks;
  T* const my_slots = slots + static_cast<std::int64_t>(blockIdx.y) * chunks * size + i;
  A running[N] = {};
  if (given != nullptr) {
    const Pack<A, N> start =
        load<N>(given + (static_cast<std::int64_t>(b) * heads + head) * size + i);
#pragma unroll
    for (int k = 0; k < N; ++k) running[k] = start.v[k];
  }
  for (int step0 = 0; step0 < chunks; step0 += kAhead) {
    Pack<T, N> sums[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int step = step0 + j, chunk = reverse ? chunks - 1 - step : step;
      if (step + 1 < chunks) sums[j] = load<N>(my_slots + chunk * size);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int step = step0 + j, chunk = reverse ? chunks - 1 - step : step;
      if (step >= chunks) break;
      const A factor = decays.powers_of(head)[decays.tokens(chunk)];
      Pack<T, N> before;
#pragma unroll
      for (int k = 0; k < N; ++k) before.v[k] = down<T>(running[k]);
      store(my_slots + chunk * size, before);
      if (step + 1 == chunks) break;
#pragma unroll
      for (int k = 0; k < N; ++k) running[k] = factor * running[k] + up(sums[j].v[k]);
    }
  }
}

// One warp per row of scores. Elements right of the diagonal are set to 0 without being read.
template <class T, int N>
__global__ void __launch_bounds__(kBlock)
    scores_kernel(T* scores, T* dscores, Decays<Acc<T>> decays, unsigned rows, int batch) {
  using A = Acc<T>;
  const unsigned row = my_row();
  if (row >= rows) return;
  const int chunk = decays.chunk;
  const int i = static_cast<int>(row % chunk);
  const unsigned slot = row / chunk;
  const int index = static_cast<int>(slot % decays.chunks);
  const int head = static_cast<int>(slot / decays.chunks / batch);
  if (i >= decays.tokens(index)) return;
  const A scale = decays.row(head, index * chunk + i);
  const A* powers = decays.powers_of(head);
  const std::int64_t offset = static_cast<std::int64_t>(row) * chunk;
  for (int j = static_cast<int>(threadIdx.x) * N; j < chunk; j += kLanes * N) {
    A factors[N];
    // g^(i-j-k) = g^(i-j-N+1) g^(N-1-k): one power per thread; the others are the same for all.
    const A last = scale * powers[max(i - j - (N - 1), 0)];
#pragma unroll
    for (int k = 0; k < N; ++k)
      factors[k] = i - j >= N - 1 ? last * powers[N - 1 - k]
                   : i - j >= k   ? scale * powers[i - j - k]
                                  : A(0);
    const auto apply = [&](T* at) {
      Pack<T, N> values = {};
      if (j <= i) values = load<N>(at + j);
#pragma unroll
      for (int k = 0; k < N; ++k)
        values.v[k] = down<T>(j + k <= i ? factors[k] * up(values.v[k]) : A(0));
      store(at + j, values);
    };
    apply(scores + offset);
    if (dscores != nullptr) apply(dscores + offset);
  }
}

template <class T>
struct Token {
  HeadView<T> out;
  HeadView<const T> q, k, v;
  const Acc<T>* state;  // nullptr: zero
  const float* decays;
  double scale;
  std::int64_t position;
  int heads, k_dim, v_dim;
};

// out = scale / norm ((q k) v + g q S). Blocks of 32 columns; the warps of a block split the rows
// of S.
template <class T>
__global__ void __launch_bounds__(kBlock) token_kernel(Token<T> p) {
  using A = Acc<T>;
  KINTSUGI_SHARED(A[kTeams][kLanes], partial);
  const int b = static_cast<int>(blockIdx.y) / p.heads, h = static_cast<int>(blockIdx.y) % p.heads;
  const int column = static_cast<int>(blockIdx.x * kLanes + threadIdx.x);
  const T *q = p.q.at(b, 0, h), *k = p.k.at(b, 0, h);
  A sum = 0;
  if (p.state != nullptr && column < p.v_dim) {
    const A* state = p.state + static_cast<std::int64_t>(blockIdx.y) * p.k_dim * p.v_dim + column;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.y); i < p.k_dim; i += kTeams)
      sum += up(q[i]) * state[static_cast<std::int64_t>(i) * p.v_dim];
  }
  partial[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0) return;
  A score = 0;
  for (int i = static_cast<int>(threadIdx.x); i < p.k_dim; i += kLanes)
    score += up(q[i]) * up(k[i]);
  score = warp_sum(score);
  if (column >= p.v_dim) return;
  sum = 0;
#pragma unroll
  for (int team = 0; team < kTeams; ++team) sum += partial[team][threadIdx.x];
  const double decay = p.decays[h];
  const A factor = static_cast<A>(row_factor(p.scale, decay, p.position));
  p.out.at(b, 0, h)[column] =
      down<T>(factor * (score * up(p.v.at(b, 0, h)[column]) + static_cast<A>(decay) * sum));
}

// One warp per row of a state, blockIdx.y for (sequence, head).
template <class T>
__global__ void __launch_bounds__(kBlock)
    decay_state_kernel(Acc<T>* state, HeadView<const T> k, HeadView<const T> v, const float* decays,
                       double length, int heads, int k_dim, int v_dim) {
  using A = Acc<T>;
  KINTSUGI_SHARED(A, shared);
  const int b = static_cast<int>(blockIdx.y) / heads, h = static_cast<int>(blockIdx.y) % heads;
  if (threadIdx.x == 0 && threadIdx.y == 0)
    shared = static_cast<A>(pow(static_cast<double>(decays[h]), length));
  __syncthreads();
  const int i = static_cast<int>(my_row());
  if (i >= k_dim) return;
  const A factor = shared;
  A* to = state + (static_cast<std::int64_t>(blockIdx.y) * k_dim + i) * v_dim;
  const A key = k.base == nullptr ? A(0) : up(k.at(b, 0, h)[i]);
  for (int j = static_cast<int>(threadIdx.x); j < v_dim; j += kLanes)
    to[j] = factor * to[j] + (k.base == nullptr ? A(0) : key * up(v.at(b, 0, h)[j]));
}

template <class T>
Scaling<T> scaling_of(const ScaledRows& rows) {
  return {HeadView<T>(rows.to), HeadView<const T>(rows.from), rows.factor};
}

}  // namespace

void retention_tables(const Context& context, const RetentionWorkspace& buffers,
                      const RetentionOptions& options) {
  const int length = static_cast<int>(buffers.rows.extent(1));
  const dim3 grid(flat_blocks(length + 1), static_cast<unsigned>(buffers.rows.extent(0)));
  const auto launch = [&]<class A>() {
    launch_kernel(context.stream, tables_kernel<A>, grid, 256, 0, data_of<A>(buffers.powers),
                  data_of<A>(buffers.rows), data_of<float>(options.decays), length, options.scale,
                  options.first_position);
  };
  if (buffers.rows.dtype() == DType::F64)
    launch.template operator()<double>();
  else
    launch.template operator()<float>();
}

void scale_rows(const Context& context, const RetentionWorkspace& buffers, const RetentionSizes& n,
                ScaledRows first, ScaledRows second) {
  if (!first.to) std::swap(first, second);
  if (!first.to) return;
  const bool both = static_cast<bool>(second.to);
  if (!both) second = first;
  const std::int64_t rows = n.batch * n.length * n.heads, dim = first.to.extent(3);
  visit_device_float(first.to.dtype(), [&]<class T>() {
    const Scaling<T> one = scaling_of<T>(first), two = scaling_of<T>(second);
    const auto launch = [&]<int N>() {
      launch_kernel(context.stream, scale_kernel<T, N>, dim3(row_blocks(rows), both ? 2 : 1),
                    row_block(), 0, one, two, Decays<Acc<T>>(buffers, n),
                    static_cast<unsigned>(rows), static_cast<int>(n.heads),
                    static_cast<int>(dim / N));
    };
    constexpr int N = kVecSize<T>;
    if (dim % N == 0 && one.to.aligned() && one.from.aligned() && two.to.aligned() &&
        two.from.aligned())
      launch.template operator()<N>();
    else
      launch.template operator()<1>();
  });
}

void scan_chunks(const Context& context, const Tensor& slots, const Tensor& given,
                 const RetentionWorkspace& buffers, const RetentionSizes& n, bool reverse) {
  const std::int64_t size = n.k_dim * n.v_dim;
  visit_device_float(slots.dtype(), [&]<class T>() {
    const auto launch = [&]<int N>() {
      const dim3 grid(flat_blocks(size / N), static_cast<unsigned>(n.heads * n.batch));
      launch_kernel(context.stream, scan_kernel<T, N>, grid, 256, 0, data_of<T>(slots),
                    data_of<Acc<T>>(given), Decays<Acc<T>>(buffers, n), static_cast<int>(n.batch),
                    static_cast<int>(n.heads), size, reverse);
    };
    if (size % 4 == 0 && aligned16(slots.data()) && aligned16(given.data()))
      launch.template operator()<4>();
    else
      launch.template operator()<1>();
  });
}

void decay_scores(const Context& context, const Tensor& scores, const Tensor& dscores,
                  const RetentionWorkspace& buffers, const RetentionSizes& n) {
  const std::int64_t rows = n.heads * n.batch * n.chunks() * n.chunk_tokens();
  visit_device_float(scores.dtype(), [&]<class T>() {
    const auto launch = [&]<int N>() {
      launch_kernel(context.stream, scores_kernel<T, N>, row_blocks(rows), row_block(), 0,
                    data_of<T>(scores), data_of<T>(dscores), Decays<Acc<T>>(buffers, n),
                    static_cast<unsigned>(rows), static_cast<int>(n.batch));
    };
    constexpr int N = kVecSize<T>;
    if (n.chunk_tokens() % N == 0 && aligned16(scores.data()) && aligned16(dscores.data()))
      launch.template operator()<N>();
    else
      launch.template operator()<1>();
  });
}

void retention_token(const Context& context, const Tensor& out, const Tensor& q, const Tensor& k,
                     const Tensor& v, const Tensor& state, const RetentionOptions& options) {
  visit_device_float(out.dtype(), [&]<class T>() {
    const Token<T> p = {.out = HeadView<T>(out),
                        .q = HeadView<const T>(q),
                        .k = HeadView<const T>(k),
                        .v = HeadView<const T>(v),
                        .state = data_of<Acc<T>>(state),
                        .decays = data_of<float>(options.decays),
                        .scale = options.scale,
                        .position = options.first_position,
                        .heads = static_cast<int>(out.extent(2)),
                        .k_dim = static_cast<int>(q.extent(3)),
                        .v_dim = static_cast<int>(out.extent(3))};
    const dim3 grid(static_cast<unsigned>(ceil_div<std::int64_t>(p.v_dim, kLanes)),
                    static_cast<unsigned>(out.extent(0) * out.extent(2)));
    launch_kernel(context.stream, token_kernel<T>, grid, row_block(), 0, p);
  });
}

void decay_state(const Context& context, const Tensor& state, std::int64_t length, const Tensor& k,
                 const Tensor& v, const RetentionOptions& options) {
  const auto launch = [&]<class T>() {
    const dim3 grid(row_blocks(state.extent(2)),
                    static_cast<unsigned>(state.extent(0) * state.extent(1)));
    launch_kernel(context.stream, decay_state_kernel<T>, grid, row_block(), 0,
                  data_of<Acc<T>>(state), HeadView<const T>(k), HeadView<const T>(v),
                  data_of<float>(options.decays), static_cast<double>(length),
                  static_cast<int>(state.extent(1)), static_cast<int>(state.extent(2)),
                  static_cast<int>(state.extent(3)));
  };
  if (state.elements() == 0) return;
  visit_device_float(k ? k.dtype() : state.dtype(), launch);
}

}  // namespace kintsugi::gpu
