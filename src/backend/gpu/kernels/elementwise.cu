// Copies with conversion, fills, sums and moving averages of whole tensors.
#include <cmath>

#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"

namespace kintsugi::gpu {
namespace {

// Converts through the arithmetic type of the source.
template <class D, class S>
__device__ inline D convert(S x) {
  if constexpr (std::is_same_v<D, S>) {
    return x;
  } else {
    return down<D>(up(x));
  }
}

// ---- strided tensors: rows of the last dimension, with up to three outer dimensions
template <class T>
struct Strided {
  T* base;
  std::int64_t stride[3];
  unsigned extent[3];  // the first is not used

  __device__ T* row(unsigned index) const {
    const unsigned i2 = index % extent[2], rest = index / extent[2];
    return base + (rest / extent[1]) * stride[0] + (rest % extent[1]) * stride[1] + i2 * stride[2];
  }
};

template <class T>
Strided<T> strided(const Tensor& x) {
  Strided<T> result = {data_of<T>(x), {0, 0, 0}, {1, 1, 1}};
  const int outer = x.rank() - 1;
  for (int i = 0; i < outer; ++i) {
    result.stride[3 - outer + i] = x.stride(i);
    result.extent[3 - outer + i] = static_cast<unsigned>(x.extent(i));
  }
  return result;
}

template <class D, class S>
__global__ void __launch_bounds__(256)
    copy_rows_kernel(Strided<D> to, Strided<S> from, unsigned width) {
  const unsigned i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i < width) to.row(blockIdx.x)[i] = convert<D>(from.row(blockIdx.x)[i]);
}

// N elements per thread.
template <class T, int N>
__global__ void __launch_bounds__(256)
    copy_packed_rows_kernel(Strided<T> to, Strided<T> from, unsigned packs) {
  const unsigned i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i < packs) store(to.row(blockIdx.x) + N * i, load<N>(from.row(blockIdx.x) + N * i));
}

// Whether all rows begin and end at multiples of 16 bytes.
bool rows_are_packed(const Tensor& x) {
  const auto size = static_cast<std::int64_t>(size_of(x.dtype()));
  bool packed = aligned16(x.data()) && x.extent(x.rank() - 1) * size % 16 == 0;
  for (int i = 0; i + 1 < x.rank(); ++i) packed = packed && x.stride(i) * size % 16 == 0;
  return packed;
}

template <class D, class S>
void copy_rows(const Context& context, const Tensor& destination, const Tensor& source) {
  const std::int64_t width = source.extent(source.rank() - 1), rows = source.elements() / width;
  if constexpr (std::is_same_v<D, S>) {
    constexpr int N = 16 / static_cast<int>(sizeof(D));
    if (rows_are_packed(destination) && rows_are_packed(source)) {
      const RowGrid grid(rows, width / N);
      return launch_kernel(context.stream, copy_packed_rows_kernel<D, N>, grid.blocks, grid.threads,
                           0, strided<D>(destination), strided<D>(source),
                           static_cast<unsigned>(width / N));
    }
  }
  const RowGrid grid(rows, width);
  launch_kernel(context.stream, copy_rows_kernel<D, S>, grid.blocks, grid.threads, 0,
                strided<D>(destination), strided<S>(source), static_cast<unsigned>(width));
}

// ---- flat arrays: N elements per thread; the elements after the last full pack one by one
template <class D, class S, int N>
__global__ void __launch_bounds__(256) copy_kernel(D* to, const S* from, std::int64_t packs) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (at >= packs * N) return;
  const Pack<S, N> in = load<N>(from + at);
  Pack<D, N> out;
#pragma unroll
  for (int k = 0; k < N; ++k) out.v[k] = convert<D>(in.v[k]);
  store(to + at, out);
}

template <class D, class S, int N>
void launch_copy(const Context& context, D* to, const S* from, std::int64_t packs) {
  if (packs == 0) return;
  launch_kernel(context.stream, copy_kernel<D, S, N>, flat_blocks(packs), 256, 0, to, from, packs);
}

template <class D, class S>
void copy_flat(const Context& context, D* to, const S* from, std::int64_t n) {
  constexpr int N = 16 / static_cast<int>(sizeof(D) < sizeof(S) ? sizeof(D) : sizeof(S));
  const std::int64_t packs = aligned16(to) && aligned16(from) ? n / N : 0;
  launch_copy<D, S, N>(context, to, from, packs);
  launch_copy<D, S, 1>(context, to + packs * N, from + packs * N, n - packs * N);
}

template <class T, int N>
__global__ void __launch_bounds__(256) fill_kernel(T* to, T value, std::int64_t packs) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (at >= packs * N) return;
  Pack<T, N> out;
#pragma unroll
  for (int k = 0; k < N; ++k) out.v[k] = value;
  store(to + at, out);
}

template <class T, int N>
void launch_fill(const Context& context, T* to, T value, std::int64_t packs) {
  if (packs == 0) return;
  launch_kernel(context.stream, fill_kernel<T, N>, flat_blocks(packs), 256, 0, to, value, packs);
}

template <class T>
void fill_flat(const Context& context, T* to, T value, std::int64_t n) {
  constexpr int N = kVecSize<T>;
  const std::int64_t packs = aligned16(to) ? n / N : 0;
  launch_fill<T, N>(context, to, value, packs);
  launch_fill<T, 1>(context, to + packs * N, value, n - packs * N);
}

template <class T, class S, int N>
__global__ void __launch_bounds__(256) add_kernel(T* y, const S* x, std::int64_t packs) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (at >= packs * N) return;
  Pack<T, N> sum = load<N>(y + at);
  const Pack<S, N> more = load<N>(x + at);
#pragma unroll
  for (int k = 0; k < N; ++k) sum.v[k] = down<T>(up(sum.v[k]) + up(more.v[k]));
  store(y + at, sum);
}

template <class T, class S, int N>
void launch_add(const Context& context, T* y, const S* x, std::int64_t packs) {
  if (packs == 0) return;
  launch_kernel(context.stream, add_kernel<T, S, N>, flat_blocks(packs), 256, 0, y, x, packs);
}

template <class T, class S>
void add_flat(const Context& context, T* y, const S* x, std::int64_t n) {
  constexpr int N = kVecSize<S>;
  const std::int64_t packs = aligned16(y) && aligned16(x) ? n / N : 0;
  launch_add<T, S, N>(context, y, x, packs);
  launch_add<T, S, 1>(context, y + packs * N, x + packs * N, n - packs * N);
}

// One thread per element of a token.
template <class T>
__global__ void __launch_bounds__(256)
    sum_heads_kernel(Strided<T> y, Strided<T> x, unsigned heads, unsigned dim) {
  const unsigned i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= dim) return;
  Acc<T> sum = 0;
  for (unsigned head = 0; head < heads; ++head) sum += up(x.row(blockIdx.x * heads + head)[i]);
  y.row(blockIdx.x)[i] = down<T>(sum);
}

template <class A, int N>
__global__ void __launch_bounds__(256)
    moving_average_kernel(A* average, const A* x, A rate, const A* scale, std::int64_t packs) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (at >= packs * N) return;
  Pack<A, N> to = load<N>(average + at);
  const Pack<A, N> from = load<N>(x + at);
  if (!isfinite(scale[0])) return;  // after the loads, so that they do not wait for it
#pragma unroll
  for (int k = 0; k < N; ++k) to.v[k] += rate * (from.v[k] - to.v[k]);
  store(average + at, to);
}

template <class A, int N>
void launch_average(const Context& context, A* average, const A* x, A rate, const A* scale,
                    std::int64_t packs) {
  if (packs == 0) return;
  launch_kernel(context.stream, moving_average_kernel<A, N>, flat_blocks(packs), 256, 0, average, x,
                rate, scale, packs);
}

template <class A>
void average_of(const Context& context, const Tensor& average, const Tensor& x, double rate,
                const Tensor& scale) {
  constexpr int N = 16 / sizeof(A);
  A* const to = data_of<A>(average);
  const A *const from = data_of<A>(x), *const factor = data_of<A>(scale);
  const std::int64_t n = average.elements();
  const std::int64_t packs = aligned16(to) && aligned16(from) ? n / N : 0;
  launch_average<A, N>(context, to, from, static_cast<A>(rate), factor, packs);
  launch_average<A, 1>(context, to + packs * N, from + packs * N, static_cast<A>(rate), factor,
                       n - packs * N);
}

}  // namespace

void copy(const Context& context, Tensor destination, Tensor source) {
  if (source.elements() == 0) return;
  const bool flat = destination.contiguous() && source.contiguous();
  if (destination.dtype() == source.dtype()) {
    if (flat) {
      copy(destination.data(), source.data(), source.bytes(), Copy::OnDevice, context.stream);
      return;
    }
    if (source.dtype() == DType::I64)
      return copy_rows<std::int64_t, std::int64_t>(context, destination, source);
    if (source.dtype() == DType::I32)
      return copy_rows<std::int32_t, std::int32_t>(context, destination, source);
    if (source.dtype() == DType::U8)
      return copy_rows<std::uint8_t, std::uint8_t>(context, destination, source);
  }
  visit_device_float(destination.dtype(), [&]<class D>() {
    visit_device_float(source.dtype(), [&]<class S>() {
      if (flat)
        copy_flat<D, S>(context, data_of<D>(destination), data_of<S>(source), source.elements());
      else
        copy_rows<D, S>(context, destination, source);
    });
  });
}

void fill(const Context& context, Tensor x, double value) {
  KINTSUGI_CHECK(x.contiguous(), "fill of a strided tensor");
  if (x.elements() == 0) return;
  if (value == 0 && !std::signbit(value)) {
    set_bytes(x.data(), 0, x.bytes(), context.stream);
    return;
  }
  const std::int64_t n = x.elements();
  const float narrow = static_cast<float>(value);
  switch (x.dtype()) {
    case DType::F64:
      return fill_flat(context, data_of<double>(x), value, n);
    case DType::F32:
      return fill_flat(context, data_of<float>(x), narrow, n);
    case DType::BF16:
      return fill_flat(context, data_of<Bf16>(x), to_bf16(narrow), n);
    case DType::F16:
      return fill_flat(context, data_of<Half>(x), to_half(narrow), n);
    case DType::I64:
      return fill_flat(context, data_of<std::int64_t>(x), static_cast<std::int64_t>(value), n);
    case DType::I32:
      return fill_flat(context, data_of<std::int32_t>(x), static_cast<std::int32_t>(value), n);
    case DType::U8:
      return fill_flat(context, data_of<std::uint8_t>(x), static_cast<std::uint8_t>(value), n);
    case DType::F8:
      failure("fill does not take fp8");
  }
}

void add(const Context& context, Tensor y, Tensor x) {
  visit_device_float(x.dtype(), [&]<class S>() {
    if (y.dtype() == x.dtype())
      add_flat(context, data_of<S>(y), data_of<S>(x), x.elements());
    else
      add_flat(context, data_of<Acc<S>>(y), data_of<S>(x), x.elements());
  });
}

void sum_heads(const Context& context, Tensor y, Tensor x) {
  if (y.elements() == 0) return;
  const RowGrid grid(y.extent(0), y.extent(1));
  visit_device_float(x.dtype(), [&]<class T>() {
    launch_kernel(context.stream, sum_heads_kernel<T>, grid.blocks, grid.threads, 0, strided<T>(y),
                  strided<T>(x), static_cast<unsigned>(x.extent(1)),
                  static_cast<unsigned>(y.extent(1)));
  });
}

void moving_average(const Context& context, Tensor average, Tensor x, double rate, Tensor scale) {
  if (average.elements() == 0) return;
  if (average.dtype() == DType::F64)
    average_of<double>(context, average, x, rate, scale);
  else
    average_of<float>(context, average, x, rate, scale);
}

}  // namespace kintsugi::gpu
