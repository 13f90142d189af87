// Kernels on rows of attention, with one warp per row (sequence, head, query).
#include <limits>

#include "backend/gpu/fused_attention.h"
#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"

namespace kintsugi::gpu {
namespace {

constexpr int kWarps = 8;

// (batch, queries, heads, dim)
template <class T>
struct Outputs {
  T* data;
  std::int64_t batch, query, head;  // strides

  __device__ T* row(int b, int h, int q) const { return data + b * batch + q * query + h * head; }
};
// (batch, heads, queries)
template <class A>
struct Sums {
  A* data;
  std::int64_t batch, head;  // strides

  __device__ A* at(int b, int h, int q) const { return data + b * batch + h * head + q; }
};

// Weights both outputs by their fraction of the sum of exponentials. Each lane computes N adjacent
// elements at a time.
template <class O, class T, int N>
__global__ void __launch_bounds__(32 * kWarps)
    merge_kernel(Outputs<O> out, Sums<Acc<T>> lse, Outputs<const T> part_out,
                 Sums<const Acc<T>> part_lse, int queries, int dim) {
  using A = Acc<T>;
  const int query = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  if (query >= queries) return;
  A* const sum = lse.at(b, h, query);
  const A before = *sum, other = *part_lse.at(b, h, query);
  if (other == -std::numeric_limits<A>::infinity()) return;  // saw no key
  const A largest = max(before, other);
  const A old_weight = exp_of<A>(before - largest), new_weight = exp_of<A>(other - largest);
  const A total = old_weight + new_weight;
  O* const to = out.row(b, h, query);
  const T* const from = part_out.row(b, h, query);
  for (int d = N * lane; d < dim; d += 32 * N) {
    Pack<O, N> sum = load<N>(to + d);
    const Pack<T, N> more = load<N>(from + d);
#pragma unroll
    for (int i = 0; i < N; ++i)
      sum.v[i] = down<O>((up(sum.v[i]) * old_weight + up(more.v[i]) * new_weight) / total);
    store(to + d, sum);
  }
  sync_team();  // every lane has read the old sum
  if (lane == 0) *sum = largest + log(total);
}

template <class T>
__global__ void __launch_bounds__(32 * kWarps)
    clear_kernel(Outputs<T> out, Sums<Acc<T>> lse, const std::int32_t* starts,
                 std::int64_t start_stride, int queries, int dim, int first_end, int keys) {
  const int query = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  if (query >= queries || starts[b * start_stride + query] < min(first_end + query, keys)) return;
  T* const to = out.row(b, h, query);
  for (int d = lane; d < dim; d += 32) to[d] = down<T>(Acc<T>(0));
  if (lane == 0) *lse.at(b, h, query) = -std::numeric_limits<Acc<T>>::infinity();
}

__global__ void __launch_bounds__(32 * kWarps)
    scale_kernel(float* to, const float* from, float factor, std::int64_t elements) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < elements) to[i] = factor * from[i];
}

template <class T>
Outputs<T> outputs_of(const Tensor& x) {
  return {data_of<std::remove_const_t<T>>(x), x.stride(0), x.stride(1), x.stride(2)};
}
template <class A>
Sums<A> sums_of(const Tensor& x) {
  return {data_of<std::remove_const_t<A>>(x), x.stride(0), x.stride(1)};
}

// Whether all rows are packs of four aligned elements.
bool is_in_fours(const Tensor& x) {
  bool fours = aligned16(x.data());
  for (int i = 0; i < 3; ++i) fours = fours && x.stride(i) % 4 == 0;
  return fours && x.extent(3) % 4 == 0;
}

dim3 blocks_of(const Tensor& out) {
  KINTSUGI_CHECK(out.extent(0) < 65536 && out.extent(2) < 65536, "attention of {}",
                 to_string(out.shape()));
  return dim3(static_cast<unsigned>(ceil_div<std::int64_t>(out.extent(1), kWarps)),
              static_cast<unsigned>(out.extent(2)), static_cast<unsigned>(out.extent(0)));
}

template <class O, class T, int N>
void merge(const Context& context, const Tensor& out, const Tensor& lse, const Tensor& part_out,
           const Tensor& part_lse) {
  using A = Acc<T>;
  launch_kernel(context.stream, merge_kernel<O, T, N>, blocks_of(out), 32 * kWarps, 0,
                outputs_of<O>(out), sums_of<A>(lse), outputs_of<const T>(part_out),
                sums_of<const A>(part_lse), static_cast<int>(out.extent(1)),
                static_cast<int>(out.extent(3)));
}

}  // namespace

void attention_merge(const Context& context, Tensor out, Tensor lse, Tensor part_out,
                     Tensor part_lse) {
  if (out.elements() == 0) return;
  const bool fours = is_in_fours(out) && is_in_fours(part_out);
  visit_device_float(part_out.dtype(), [&]<class T>() {
    const bool wide = out.dtype() != part_out.dtype();
    wide    ? fours ? merge<Acc<T>, T, 4>(context, out, lse, part_out, part_lse)
                    : merge<Acc<T>, T, 1>(context, out, lse, part_out, part_lse)
       : fours ? merge<T, T, 4>(context, out, lse, part_out, part_lse)
            : merge<T, T, 1>(context, out, lse, part_out, part_lse);
  });
}

namespace {

// Of queries that see no key: document_start is not among the first `first_end` + query of `keys`.
void clear_rows(Tensor out, Tensor lse, Tensor document_start, std::int64_t first_end,
                std::int64_t keys, Stream stream) {
  visit_device_float(out.dtype(), [&]<class T>() {
    launch_kernel(stream, clear_kernel<T>, blocks_of(out), 32 * kWarps, 0, outputs_of<T>(out),
                  sums_of<Acc<T>>(lse), data_of<std::int32_t>(document_start),
                  document_start.stride(0), static_cast<int>(out.extent(1)),
                  static_cast<int>(out.extent(3)), static_cast<int>(first_end),
                  static_cast<int>(keys));
  });
}

}  // namespace

void clear_empty_rows(Tensor out, Tensor lse, Tensor document_start, Stream stream) {
  clear_rows(out, lse, document_start, 1, out.extent(1), stream);
}

void clear_empty_block_rows(Tensor out, Tensor lse, Tensor document_start, std::int64_t keys,
                            Stream stream) {
  clear_rows(out, lse, document_start, keys, keys, stream);
}

void scale_sums(Tensor to, Tensor from, double factor, Stream stream) {
  KINTSUGI_CHECK(to.dtype() == DType::F32 && from.dtype() == DType::F32 && to.contiguous() &&
                     from.contiguous() && to.elements() == from.elements(),
                 "sums {} of {}", to_string(to.shape()), to_string(from.shape()));
  const std::int64_t blocks = ceil_div<std::int64_t>(to.elements(), 32 * kWarps);
  launch_kernel(stream, scale_kernel, dim3(static_cast<unsigned>(blocks)), 32 * kWarps, 0,
                data_of<float>(to), data_of<float>(from), static_cast<float>(factor),
                to.elements());
}

}  // namespace kintsugi::gpu
