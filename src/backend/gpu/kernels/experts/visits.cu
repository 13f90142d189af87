// Which choices are kept, and the visits of tokens to the ranks that hold their experts.
#include <algorithm>

#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"

namespace kintsugi::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxExperts = 1024;  // a thread each

// A block per sequence, a thread per expert: every thread reads all choices of the sequence.
template <class A>
__global__ void __launch_bounds__(kMaxExperts)
    limit_choices_kernel(std::int32_t* kept, A* dropped, const std::int32_t* ids, int choices,
                         int experts, int capacity) {
  const int expert = static_cast<int>(threadIdx.x);
  if (expert >= experts) return;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * choices;
  int count = 0;
  for (int i = 0; i < choices; ++i) {
    if (ids[first + i] != expert) continue;
    kept[first + i] = count < capacity ? expert : -1;
    ++count;
  }
  // Sums of whole numbers: their order does not matter.
  if (dropped != nullptr && count > capacity) atomicAdd(dropped, static_cast<A>(count - capacity));
}

struct Owners {
  int first, own, stride;
};

// A thread per token and rank.
__global__ void __launch_bounds__(kThreads)
    find_visits_kernel(std::int32_t* visits, const std::int32_t* ids, int tokens, int ranks, int k,
                       Owners owners) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= tokens * ranks) return;
  const std::int32_t* const own = ids + static_cast<std::int64_t>(i / ranks) * k;
  const int rank = i % ranks, first = owners.first + rank * owners.stride;
  bool visited = false;
  for (int slot = 0; slot < k; ++slot)
    visited = visited || (own[slot] >= first && own[slot] < first + owners.own);
  visits[i] = visited ? rank : -1;
}

// A warp has a row at a time. U: what a lane copies at once.
constexpr int kGatherWarps = kThreads / 32;
template <class U>
__global__ void __launch_bounds__(kThreads)
    gather_rows_kernel(RowView<U> y, RowView<const U> x, const std::int32_t* rows,
                       const std::int32_t* used, int choices, int width) {
  const int lane = static_cast<int>(threadIdx.x) % 32,
            step = static_cast<int>(gridDim.x) * kGatherWarps, count = *used;
  for (int row = static_cast<int>(blockIdx.x) * kGatherWarps + static_cast<int>(threadIdx.x) / 32;
       row < count; row += step) {
    const U* const from = x[rows[row] / choices];
    U* const to = y[row];
    for (int i = lane; i < width; i += 32) to[i] = from[i];
  }
}

// Whether the rows of a tensor consist of whole units, and the rows.
template <class U>
bool has_units(const Tensor& x) {
  const std::size_t size = size_of(x.dtype()), width = static_cast<std::size_t>(x.extent(1)) * size,
                    stride = static_cast<std::size_t>(x.stride(0)) * size;
  return width % sizeof(U) == 0 && stride % sizeof(U) == 0 &&
         reinterpret_cast<std::uintptr_t>(x.data()) % sizeof(U) == 0;
}
template <class U>
RowView<U> units_of(const Tensor& x) {
  const auto bytes = x.stride(0) * static_cast<std::int64_t>(size_of(x.dtype()));
  return {static_cast<U*>(x.data()), bytes / static_cast<std::int64_t>(sizeof(U))};
}

template <class U>
void launch_gather(const Context& context, const Tensor& y, const Tensor& x,
                   const ExpertRows& rows) {
  const auto blocks = std::min<std::int64_t>(
      ceil_div<std::int64_t>(rows.rows.elements(), kGatherWarps), 8 * context.multiprocessors);
  launch_kernel(
      context.stream, gather_rows_kernel<U>, static_cast<unsigned>(blocks), kThreads, 0,
      units_of<U>(y), units_of<const U>(x), data_of<std::int32_t>(rows.rows),
      data_of<std::int32_t>(rows.offsets) + rows.offsets.elements() - 1,
      static_cast<int>(rows.choices),
      static_cast<int>(static_cast<std::size_t>(x.extent(1)) * size_of(x.dtype()) / sizeof(U)));
}

}  // namespace

void limit_choices(const Context& context, Tensor kept, Tensor dropped, Tensor ids,
                   const ChoiceLimit& limit) {
  const std::int64_t each = limit.length * ids.extent(1);
  KINTSUGI_CHECK(limit.experts <= kMaxExperts, "limit_choices of {} experts: at most {} on a GPU",
                 limit.experts, kMaxExperts);
  if (ids.elements() == 0) return;
  const auto launch = [&]<class A>(A* sum) {
    launch_kernel(
        context.stream, limit_choices_kernel<A>, static_cast<unsigned>(ids.elements() / each),
        ceil_div<int>(static_cast<int>(limit.experts), 64) * 64, 0, data_of<std::int32_t>(kept),
        sum, data_of<std::int32_t>(ids), static_cast<int>(each), static_cast<int>(limit.experts),
        static_cast<int>(limit.capacity));
  };
  if (dropped && dropped.dtype() == DType::F64)
    launch(data_of<double>(dropped));
  else
    launch(dropped ? data_of<float>(dropped) : static_cast<float*>(nullptr));
}

void find_visits(const Context& context, Tensor visits, Tensor ids, const ExpertOwners& owners) {
  if (visits.elements() == 0) return;
  const auto blocks = ceil_div<std::int64_t>(visits.elements(), kThreads);
  launch_kernel(context.stream, find_visits_kernel, static_cast<unsigned>(blocks), kThreads, 0,
                data_of<std::int32_t>(visits), data_of<std::int32_t>(ids),
                static_cast<int>(ids.extent(0)), static_cast<int>(visits.extent(1)),
                static_cast<int>(ids.extent(1)),
                Owners{static_cast<int>(owners.first), static_cast<int>(owners.own),
                       static_cast<int>(owners.stride)});
}

void gather_rows(const Context& context, Tensor y, Tensor x, const ExpertRows& rows) {
  if (y.elements() == 0) return;
  const auto fits = [&]<class U>(U) { return has_units<U>(y) && has_units<U>(x); };
  if (fits(uint4{}))
    launch_gather<uint4>(context, y, x, rows);
  else if (fits(std::uint32_t{}))
    launch_gather<std::uint32_t>(context, y, x, rows);
  else
    launch_gather<std::uint16_t>(context, y, x, rows);
}

}  // namespace kintsugi::gpu
