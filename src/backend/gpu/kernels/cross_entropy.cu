// Softmax, loss and gradient of one chunk of logits, in place, with one block per row. It reads the
// row once for the maximum and the sum together. It then reads it again from the end, which is
// still in the cache, and writes the gradient.
#include <algorithm>
#include <limits>

#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"

namespace kintsugi::gpu {
namespace {

constexpr int kAhead = 4;  // vector loads in flight per thread

// A row of any length at any address, as 16-byte vectors with single elements before the first
// 16-byte boundary (the head) and after the last vector (the tail).
template <class T>
struct VectorizedRow {
  __device__ VectorizedRow(T* row, int length) : row(row), length(length) {
    const int misaligned = static_cast<int>(reinterpret_cast<std::uintptr_t>(row) % 16 / sizeof(T));
    head = min(length, misaligned == 0 ? 0 : kVecSize<T> - misaligned);
    vectors = (length - head) / kVecSize<T>;
  }
  __device__ T* vector(int i) const { return row + head + i * kVecSize<T>; }
  // Calls f(element) for each element of head and tail (at most 7 + 7), with one thread each.
  template <class F>
  __device__ void for_single(F&& f) const {
    const int tail = head + vectors * kVecSize<T>;
    for (int i = static_cast<int>(threadIdx.x); i < head + length - tail;
         i += static_cast<int>(blockDim.x))
      f(row + (i < head ? i : tail + i - head));
  }
  T* row;
  int length, head, vectors;
};

// The largest value so far, and the sum of exp(x - largest).
template <class T>
struct Softmax {
  using A = Acc<T>;
  A largest = std::numeric_limits<A>::lowest(), sum = 0;

  template <int N>
  __device__ void add(const Pack<T, N>& x) {
    A top = up(x.v[0]);
#pragma unroll
    for (int k = 1; k < N; ++k) top = max(top, up(x.v[k]));
    raise(top);
#pragma unroll
    for (int k = 0; k < N; ++k) sum += exp_of<T>(up(x.v[k]) - largest);
  }
  __device__ void raise(A top) {
    if (!(top > largest)) return;
    sum *= exp_of<T>(largest - top);
    largest = top;
  }
  // Combines the values of all threads of the block. `shared` has space for 32 values.
  __device__ void combine(A* shared) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    A top = warp_max(largest);
    if (lane == 0) shared[warp] = top;
    __syncthreads();
    top = warp_max(lane < static_cast<int>(blockDim.x / 32) ? shared[lane] : largest);
    raise(top);
    sum = block_sum(sum, shared);
  }
};

template <class T>
__device__ Softmax<T> reduce(const VectorizedRow<T>& row) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  Softmax<T> softmax;
  row.for_single([&](T* x) { softmax.add(load<1>(x)); });
  int i = thread;
  for (; i + (kAhead - 1) * threads < row.vectors; i += kAhead * threads) {
    Vec<T> x[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) x[a] = load_vec(row.vector(i + a * threads));
#pragma unroll
    for (int a = 0; a < kAhead; ++a) softmax.add(x[a]);
  }
  for (; i < row.vectors; i += threads) softmax.add(load_vec(row.vector(i)));
  return softmax;
}

// x = factor * exp(x - largest)
template <class T>
__device__ void write_gradient(const VectorizedRow<T>& row, Acc<T> largest, Acc<T> factor) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const auto gradient = [&](T x) { return down<T>(factor * exp_of<T>(up(x) - largest)); };
  const auto write = [&](T* to, Vec<T> x) {
#pragma unroll
    for (int k = 0; k < kVecSize<T>; ++k) x.v[k] = gradient(x.v[k]);
    store_streaming(to, x);
  };
  row.for_single([&](T* x) { *x = gradient(*x); });
  int i = row.vectors - 1 - thread;
  for (; i - (kAhead - 1) * threads >= 0; i -= kAhead * threads) {
    Vec<T> x[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) x[a] = load_vec(row.vector(i - a * threads));
#pragma unroll
    for (int a = 0; a < kAhead; ++a) write(row.vector(i - a * threads), x[a]);
  }
  for (; i >= 0; i -= threads) write(row.vector(i), load_vec(row.vector(i)));
}

template <class T>
__device__ void write_zeros(const VectorizedRow<T>& row) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  row.for_single([&](T* x) { *x = down<T>(Acc<T>(0)); });
  Vec<T> zeros;
#pragma unroll
  for (int k = 0; k < kVecSize<T>; ++k) zeros.v[k] = down<T>(Acc<T>(0));
  for (int i = thread; i < row.vectors; i += threads) store_streaming(row.vector(i), zeros);
}

// CrossEntropyOptions on the device, in accumulator precision.
template <class A>
struct Options {
  A gradient_scale;
  A twice_z_loss;
  const A* weights;    // (rows) or nullptr
  A* squared_log_z;    // (rows) or nullptr
  A* smallest_losses;  // (rows) or nullptr
};

// The outputs of a row without a target.
template <class T>
__device__ void write_no_target(Acc<T>* losses, const VectorizedRow<T>& row,
                                const Options<Acc<T>>& options) {
  using A = Acc<T>;
  if (threadIdx.x == 0) {
    losses[blockIdx.x] = A(0);
    if (options.squared_log_z != nullptr) options.squared_log_z[blockIdx.x] = A(0);
    if (options.smallest_losses != nullptr) options.smallest_losses[blockIdx.x] = A(0);
  }
  if (options.gradient_scale != A(0)) write_zeros(row);
}

// The outputs of a row from its softmax: gradient_scale * (weight * softmax - [target]). `below` is
// the target's logit minus the largest; the target's column may be on another rank.
template <class T>
__device__ void write_row(Acc<T>* losses, const VectorizedRow<T>& row, Acc<T> largest, Acc<T> sum,
                          Acc<T> below, std::int64_t target, const Options<Acc<T>>& options) {
  using A = Acc<T>;
  const A log_sum = log(sum), log_z = largest + log_sum,
          row_weight = options.weights != nullptr ? options.weights[blockIdx.x] : A(1),
          scale = row_weight * options.gradient_scale;
  if (threadIdx.x == 0) {
    losses[blockIdx.x] = row_weight * (log_sum - below);
    if (options.squared_log_z != nullptr)
      options.squared_log_z[blockIdx.x] = row_weight * log_z * log_z;
    // Its logit is the largest: nothing is subtracted.
    if (options.smallest_losses != nullptr) options.smallest_losses[blockIdx.x] = log_sum;
  }
  if (options.gradient_scale == A(0)) return;
  const A weight = A(1) + options.twice_z_loss * log_z;
  write_gradient(row, largest, scale * weight / sum);
  __syncthreads();
  if (threadIdx.x == 0 && target >= 0 && target < row.length)
    row.row[target] = down<T>(scale * (weight * exp_of<T>(below) / sum - A(1)));
}

template <class T>
__global__ void __launch_bounds__(1024, 1)
    cross_entropy_kernel(Acc<T>* losses, T* logits, std::int64_t stride, int vocabulary,
                         const std::int32_t* targets, Options<Acc<T>> options) {
  using A = Acc<T>;
  KINTSUGI_SHARED(A[32], shared);
  const VectorizedRow<T> row(logits + static_cast<std::int64_t>(blockIdx.x) * stride, vocabulary);
  const int target = targets[blockIdx.x];
  if (target < 0) return write_no_target(losses, row, options);
  // Read before any thread overwrites it: combine() synchronizes the block.
  const A target_logit = up(row.row[target]);
  Softmax<T> softmax = reduce(row);
  softmax.combine(shared);
  const A below =
      target_logit - softmax.largest;  // the difference first, because logits may be large
  write_row(losses, row, softmax.largest, softmax.sum, below, target, options);
}

// ---- rows whose columns are sharded over ranks

template <class T>
__global__ void __launch_bounds__(1024, 1)
    partial_kernel(Acc<T>* partial, T* logits, std::int64_t stride, int columns,
                   const std::int32_t* targets, std::int64_t first_column) {
  using A = Acc<T>;
  KINTSUGI_SHARED(A[32], shared);
  const VectorizedRow<T> row(logits + static_cast<std::int64_t>(blockIdx.x) * stride, columns);
  Softmax<T> softmax = reduce(row);
  softmax.combine(shared);
  if (threadIdx.x != 0) return;
  const std::int64_t target = targets[blockIdx.x] - first_column;
  A* const to = partial + static_cast<std::int64_t>(blockIdx.x) * 3;
  to[0] = softmax.largest;
  to[1] = softmax.sum;
  to[2] = target >= 0 && target < columns ? up(row.row[target]) : A(0);
}

template <class T>
__global__ void __launch_bounds__(1024, 1)
    merged_kernel(Acc<T>* losses, T* logits, std::int64_t stride, int columns,
                  const std::int32_t* targets, const Acc<T>* partials, int shards,
                  std::int64_t first_column, Options<Acc<T>> options) {
  using A = Acc<T>;
  const VectorizedRow<T> row(logits + static_cast<std::int64_t>(blockIdx.x) * stride, columns);
  if (targets[blockIdx.x] < 0) return write_no_target(losses, row, options);
  const A* const first = partials + static_cast<std::int64_t>(blockIdx.x) * 3;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * 3;
  A largest = std::numeric_limits<A>::lowest(), sum = 0, target_logit = 0;
  for (int i = 0; i < shards; ++i) largest = max(largest, first[i * step]);
  for (int i = 0; i < shards; ++i) {
    sum += first[i * step + 1] * exp_of<A>(first[i * step] - largest);
    target_logit += first[i * step + 2];
  }
  write_row(losses, row, largest, sum, target_logit - largest, targets[blockIdx.x] - first_column,
            options);
}

// ---- launchers

// Two blocks on a multiprocessor hide each other's latency if their rows fit in the cache together.
template <class T>
int threads_for(int columns) {
  const std::size_t row_bytes = static_cast<std::size_t>(columns) * sizeof(T);
  const int most = row_bytes <= (std::size_t{160} << 10) ? 512 : 1024;
  return std::clamp(ceil_div(ceil_div(columns, kVecSize<T>), 32) * 32, 32, most);
}

template <class A>
Options<A> on_device(const CrossEntropyOptions& options) {
  const auto data = [](const Tensor& x) { return x ? data_of<A>(x) : nullptr; };
  return {static_cast<A>(options.gradient_scale), static_cast<A>(2 * options.z_loss),
          data(options.weights), data(options.squared_log_z), data(options.smallest_losses)};
}

}  // namespace

void cross_entropy(const Context& context, Tensor losses, Tensor logits, Tensor targets,
                   const CrossEntropyOptions& options) {
  if (logits.elements() == 0) return;
  const auto rows = static_cast<unsigned>(logits.extent(0));
  const int vocabulary = static_cast<int>(logits.extent(1));
  visit_device_float(logits.dtype(), [&]<class T>() {
    launch_kernel(context.stream, cross_entropy_kernel<T>, rows, threads_for<T>(vocabulary), 0,
                  data_of<Acc<T>>(losses), data_of<T>(logits), logits.stride(0), vocabulary,
                  data_of<std::int32_t>(targets), on_device<Acc<T>>(options));
  });
}

void cross_entropy_partial(const Context& context, Tensor partial, Tensor logits, Tensor targets,
                           std::int64_t first_column) {
  if (logits.extent(0) == 0) return;
  const auto rows = static_cast<unsigned>(logits.extent(0));
  const int columns = static_cast<int>(logits.extent(1));
  visit_device_float(logits.dtype(), [&]<class T>() {
    launch_kernel(context.stream, partial_kernel<T>, rows, threads_for<T>(columns), 0,
                  data_of<Acc<T>>(partial), data_of<T>(logits), logits.stride(0), columns,
                  data_of<std::int32_t>(targets), first_column);
  });
}

void cross_entropy_merged(const Context& context, Tensor losses, Tensor logits, Tensor targets,
                          Tensor partials, std::int64_t first_column,
                          const CrossEntropyOptions& options) {
  if (logits.extent(0) == 0) return;
  const auto rows = static_cast<unsigned>(logits.extent(0));
  const int columns = static_cast<int>(logits.extent(1));
  visit_device_float(logits.dtype(), [&]<class T>() {
    const int threads = options.gradient_scale == 0 ? 32 : threads_for<T>(columns);
    launch_kernel(context.stream, merged_kernel<T>, rows, threads, 0, data_of<Acc<T>>(losses),
                  data_of<T>(logits), logits.stride(0), columns, data_of<std::int32_t>(targets),
                  data_of<Acc<T>>(partials), static_cast<int>(partials.extent(0)), first_column,
                  on_device<Acc<T>>(options));
  });
}

}  // namespace kintsugi::gpu
