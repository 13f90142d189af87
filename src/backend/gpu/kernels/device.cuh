#pragma once

#include <cstring>
#include <type_traits>

#include "backend/gpu/common.h"
#include "backend/gpu/kernels/platform.cuh"

// Helpers of kernels: storage types, conversions, 16-byte accesses, reductions in a fixed order.

namespace kintsugi::gpu {

// The type of arithmetic on a stored type: double for double, float for all others.
template <class T>
using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Calls f.template operator()<T>() with the device's storage type of a floating-point dtype.
template <class F>
decltype(auto) visit_device_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::F64:
      return f.template operator()<double>();
    case DType::F32:
      return f.template operator()<float>();
    case DType::BF16:
      return f.template operator()<Bf16>();
    case DType::F16:
      return f.template operator()<Half>();
    default:
      failure("{} is not a floating-point type", to_string(dtype));
  }
}

template <class T>
inline constexpr DType kDeviceDType = DTypeOf<T>::value;
template <>
inline constexpr DType kDeviceDType<Bf16> = DType::BF16;
template <>
inline constexpr DType kDeviceDType<Half> = DType::F16;

// The address of a tensor that must hold T; nullptr for the empty tensor.
template <class T>
T* data_of(const Tensor& x) {
  KINTSUGI_CHECK(!x || x.dtype() == kDeviceDType<T>, "tensor has dtype {}, expected {}",
                 to_string(x.dtype()), to_string(kDeviceDType<T>));
  return static_cast<T*>(x.data());
}

// ---- conversions: up() to arithmetic, down<T>() to storage (round to nearest even)
__device__ inline double up(double x) { return x; }
__device__ inline float up(float x) { return x; }
__device__ inline float up(Bf16 x) { return to_float(x); }
__device__ inline float up(Half x) { return to_float(x); }

template <class T, class A>
__device__ inline T down(A x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return to_bf16(static_cast<float>(x));
  } else if constexpr (std::is_same_v<T, Half>) {
    return to_half(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

// ---- maths at the precision of the stored type: the fast intrinsics suffice for 16-bit results
template <class T>
__device__ inline Acc<T> exp_of(Acc<T> x) {
  if constexpr (std::is_same_v<T, double>) {
    return exp(x);
  } else if constexpr (std::is_same_v<T, float>) {
    return expf(x);
  } else {
    return fast_exp(x);
  }
}
// on = sigmoid(x) and off = 1 - sigmoid(x), each accurate where it is small.
template <class T>
struct Gate {
  __device__ explicit Gate(Acc<T> x) {
    using A = Acc<T>;
    const A e = exp_of<T>(x < A(0) ? x : -x);  // never overflows
    A large;
    if constexpr (sizeof(T) == 2) {
      large = fast_divide(1.0f, 1.0f + e);
    } else {
      large = A(1) / (A(1) + e);
    }
    on = x < A(0) ? e * large : large;
    off = x < A(0) ? large : e * large;
  }
  Acc<T> on, off;
};

// ---- accesses of N elements at once; with N * sizeof(T) = 16 (a Vec), one instruction each
template <class T, int N>
struct alignas(N * sizeof(T) <= 16 ? N * sizeof(T) : 16) Pack {
  static constexpr int kSize = N;
  T v[N];
};

template <class T>
inline constexpr int kVecSize = 16 / static_cast<int>(sizeof(T));
template <class T>
using Vec = Pack<T, kVecSize<T>>;

namespace detail {

// The largest machine word that divides kBytes, so that the compiler does not split a pack of
// 16-bit floats into 2-byte accesses.
template <int kBytes>
using Word = std::conditional_t<
    kBytes % 16 == 0, int4,
    std::conditional_t<kBytes % 8 == 0, int2,
                       std::conditional_t<kBytes % 4 == 0, int,
                                          std::conditional_t<kBytes % 2 == 0, short, char>>>>;

}  // namespace detail

template <int N, class T>
__device__ inline Pack<T, N> load(const T* address) {
  using W = detail::Word<sizeof(Pack<T, N>)>;
  W words[sizeof(Pack<T, N>) / sizeof(W)];
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(words) / sizeof(W)); ++i)
    words[i] = reinterpret_cast<const W*>(address)[i];
  Pack<T, N> pack;
  memcpy(&pack, words, sizeof(pack));
  return pack;
}
template <int N, class T>
__device__ inline void store(T* address, const Pack<T, N>& pack) {
  using W = detail::Word<sizeof(Pack<T, N>)>;
  W words[sizeof(Pack<T, N>) / sizeof(W)];
  memcpy(words, &pack, sizeof(pack));
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(words) / sizeof(W)); ++i)
    reinterpret_cast<W*>(address)[i] = words[i];
}
template <class T>
__device__ inline void store_streaming(T* address, const Vec<T>& vec) {
  int4 word;
  memcpy(&word, &vec, sizeof(word));
  store_streaming(reinterpret_cast<int4*>(address), word);
}
template <class T>
__device__ inline Vec<T> load_vec(const T* address) {
  return load<kVecSize<T>>(address);
}
template <class T>
__device__ inline void store_vec(T* address, const Vec<T>& vec) {
  store<kVecSize<T>>(address, vec);
}

// ---- reductions: the order never depends on timing. Every thread receives the result.
template <int kLanes = kTeam, class A>
__device__ inline A warp_sum(A x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x += shuffle_xor(x, offset);
  return x;
}
template <class A>
__device__ inline A warp_max(A x) {
#pragma unroll
  for (int offset = kTeam / 2; offset > 0; offset /= 2) {
    const A other = shuffle_xor(x, offset);
    x = other > x ? other : x;
  }
  return x;
}

// The sum over this lane and those before it.
__device__ inline int inclusive_sum(int x, int lane) {
#pragma unroll
  for (int offset = 1; offset < kTeam; offset *= 2) {
    const int before = shuffle_up(x, offset);
    if (lane >= offset) x += before;
  }
  return x;
}

// For one-dimensional blocks of whole warps. `shared` has space for 32 values.
template <class A>
__device__ inline A block_sum(A x, A* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = warp_sum(x);
  __syncthreads();  // shared may still be read by a previous call
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  return warp_sum(lane < static_cast<int>(blockDim.x / 32) ? shared[lane] : A(0));
}

// ---- rows
// The rows of a (rows, width) or (tokens, heads, width) tensor with any outer strides.
template <class T>
struct RowView {
  T* base = nullptr;
  std::int64_t outer_stride = 0, inner_stride = 0;
  unsigned inner = 1;

  __device__ T* operator[](std::int64_t row) const {
    if (inner == 1) return base + row * outer_stride;
    const unsigned r = static_cast<unsigned>(row);
    return base + static_cast<std::int64_t>(r / inner) * outer_stride +
           static_cast<std::int64_t>(r % inner) * inner_stride;
  }
  // Every row starts at a multiple of 16 bytes.
  bool aligned() const {
    return aligned16(base) && outer_stride * sizeof(T) % 16 == 0 &&
           inner_stride * sizeof(T) % 16 == 0;
  }
};

template <class T>
RowView<T> rows_of(const Tensor& x) {
  if (!x) return {};
  KINTSUGI_CHECK(x.rank() == 2 || x.rank() == 3, "rows of {}", to_string(x.shape()));
  RowView<T> view;
  view.base = data_of<std::remove_const_t<T>>(x);
  view.outer_stride = x.stride(0);
  if (x.rank() == 3) {
    KINTSUGI_CHECK(x.extent(0) * x.extent(1) < (std::int64_t{1} << 31), "rows of {}",
                   to_string(x.shape()));
    view.inner = static_cast<unsigned>(x.extent(1));
    view.inner_stride = x.stride(1);
  }
  return view;
}
inline std::int64_t row_count(const Tensor& x) {
  return x.rank() == 3 ? x.extent(0) * x.extent(1) : x.extent(0);
}

// One thread per access; blocks (row, range of the row).
struct RowGrid {
  RowGrid(std::int64_t rows, std::int64_t packs)
      : threads(static_cast<unsigned>(packs < 256 ? ceil_div<std::int64_t>(packs, 32) * 32 : 256)),
        blocks(static_cast<unsigned>(rows),
               static_cast<unsigned>(ceil_div<std::int64_t>(packs, threads == 0 ? 1 : threads))) {}
  unsigned threads;
  dim3 blocks;
};

// One thread per access on a flat array.
inline unsigned flat_blocks(std::int64_t accesses, int threads = 256) {
  return static_cast<unsigned>(ceil_div<std::int64_t>(accesses, threads));
}

}  // namespace kintsugi::gpu
