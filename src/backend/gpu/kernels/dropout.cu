// Dropout. The mask is a function of the key and the global element index: it is never stored, and
// is the same in every layout and on the CPU backend.
#include <cmath>

#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"
#include "core/philox.h"

namespace kintsugi::gpu {
namespace {

template <class T>
struct Dropout {
  RowView<T> y;
  RowView<const T> x, residual;  // residual.base nullptr: none
  std::uint64_t key;
  std::uint64_t first_row;
  const std::int32_t* rows;  // (rows) or nullptr
  std::uint32_t threshold;  // an element is kept if the upper 24 bits of its draw are at least this
  Acc<T> keep;              // 1 / (1 - p)
  int width;
  std::uint64_t first_column, whole_width;  // of the row on all ranks

  // The global index of an element.
  __device__ std::uint64_t element(unsigned row, int i) const {
    const std::int64_t index = rows == nullptr ? std::int64_t{row} : rows[row];
    return (first_row + index) * whole_width + first_column + i;
  }
};

template <class T>
__device__ inline Acc<T> masked(const Dropout<T>& p, T x, std::uint32_t bits) {
  return bits >> 8 >= p.threshold ? up(x) * p.keep : Acc<T>(0);
}

// For rows of a multiple of four elements: element e uses word e % 4 of draw e / 4.
template <class T, int N>
__global__ void __launch_bounds__(256) packed_kernel(Dropout<T> p) {
  static_assert(N % 4 == 0);
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * N;
  if (i >= p.width) return;
  const Pack<T, N> in = load<N>(p.x[blockIdx.x] + i);
  Pack<T, N> extra = {};
  if (p.residual.base != nullptr) extra = load<N>(p.residual[blockIdx.x] + i);
  const std::uint64_t element = p.element(blockIdx.x, i);
  Pack<T, N> out;
#pragma unroll
  for (int draw = 0; draw < N / 4; ++draw) {
    Philox::Block bits = {};
    if (p.threshold != 0) bits = Philox::draw(p.key, element / 4 + draw);
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const int k = draw * 4 + word;
      out.v[k] = down<T>(up(extra.v[k]) + masked(p, in.v[k], bits[word]));
    }
  }
  store(p.y[blockIdx.x] + i, out);
}

template <class T>
__global__ void __launch_bounds__(256) single_kernel(Dropout<T> p) {
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (i >= p.width) return;
  const std::uint64_t element = p.element(blockIdx.x, i);
  Philox::Block draw = {};
  if (p.threshold != 0) draw = Philox::draw(p.key, element / 4);
  const unsigned word = static_cast<unsigned>(element % 4);
  const std::uint32_t bits = word == 0   ? draw[0]
                             : word == 1 ? draw[1]
                             : word == 2 ? draw[2]
                                         : draw[3];
  const Acc<T> extra = p.residual.base != nullptr ? up(p.residual[blockIdx.x][i]) : Acc<T>(0);
  p.y[blockIdx.x][i] = down<T>(extra + masked(p, p.x[blockIdx.x][i], bits));
}

template <class T, int N>
void launch_packed(const Context& context, const Dropout<T>& p, std::int64_t rows) {
  const RowGrid grid(rows, p.width / N);
  launch_kernel(context.stream, packed_kernel<T, N>, grid.blocks, grid.threads, 0, p);
}

template <class T>
void launch_single(const Context& context, const Dropout<T>& p, std::int64_t rows) {
  const RowGrid grid(rows, p.width);
  launch_kernel(context.stream, single_kernel<T>, grid.blocks, grid.threads, 0, p);
}

}  // namespace

void dropout(const Context& context, Tensor y, Tensor x, const DropoutOptions& options,
             Tensor residual) {
  if (x.elements() == 0) return;
  if (options.probability == 0 && !residual) {
    if (y.data() != x.data()) copy(context, y, x);
    return;
  }
  // A uniform draw is k / 2^24, so "draw >= p" is "k >= ceil(p * 2^24)" exactly.
  const float limit = static_cast<float>(options.probability);
  const auto threshold =
      static_cast<std::uint32_t>(std::ceil(static_cast<double>(limit) * 0x1.0p24));
  visit_device_float(x.dtype(), [&]<class T>() {
    constexpr int N = kVecSize<T> < 4 ? 4 : kVecSize<T>;
    const Dropout<T> p = {
        .y = rows_of<T>(y),
        .x = rows_of<const T>(x),
        .residual = rows_of<const T>(residual),
        .key = options.key,
        .first_row = static_cast<std::uint64_t>(options.first_row),
        .rows = options.rows ? data_of<std::int32_t>(options.rows) : nullptr,
        .threshold = threshold,
        .keep = Acc<T>(1) / (Acc<T>(1) - static_cast<Acc<T>>(options.probability)),
        .width = static_cast<int>(x.extent(1)),
        .first_column = static_cast<std::uint64_t>(options.first_column),
        .whole_width = static_cast<std::uint64_t>(options.width > 0 ? options.width : x.extent(1))};
    if (p.y.aligned() && p.x.aligned() && p.residual.aligned() && p.width % N == 0 &&
        p.first_column % 4 == 0 && p.whole_width % 4 == 0)
      launch_packed<T, N>(context, p, x.extent(0));
    else
      launch_single<T>(context, p, x.extent(0));
  });
}

}  // namespace kintsugi::gpu
