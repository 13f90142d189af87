// Initial weights: random numbers by global index.
#include <algorithm>

#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"
#include "core/philox.h"

namespace kintsugi::gpu {
namespace {

constexpr double kTwoPi = 6.283185307179586476925286766559;

// Elements 2i and 2i + 1, as the CPU computes them.
__device__ inline double2 draw_pair(const DrawOptions& options, std::uint64_t i) {
  const Philox::Block words = Philox::draw(options.key, i);
  if (options.distribution == Distribution::Uniform)
    return {options.scale * (static_cast<double>(words[0]) * 0x1.0p-31 - 1.0),
            options.scale * (static_cast<double>(words[1]) * 0x1.0p-31 - 1.0)};
  const double u1 = (static_cast<double>(words[0]) + 1.0) * 0x1.0p-32,
               u2 = static_cast<double>(words[1]) * 0x1.0p-32;
  const double radius = sqrt(-2.0 * log(u1));
  double sine, cosine;
  sincos(kTwoPi * u2, &sine, &cosine);
  return {options.scale * (radius * cosine), options.scale * (radius * sine)};
}

// Elements outside [0, width) of a row belong to the neighbours of its first and last pair.
template <class T>
__global__ void __launch_bounds__(256) draw_kernel(T* to, std::int64_t stride, std::int64_t rows,
                                                   std::int64_t width, DrawOptions options) {
  const std::int64_t pairs = width / 2 + 1;  // per row, at most
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       at < rows * pairs; at += step) {
    const std::int64_t row = at / pairs, first = options.first + row * options.row_stride;
    const std::int64_t pair = first / 2 + at % pairs, column = 2 * pair - first;
    if (column >= width) continue;
    const double2 drawn = draw_pair(options, static_cast<std::uint64_t>(pair));
    T* const out = to + row * stride;
    if (column >= 0) out[column] = down<T>(static_cast<Acc<T>>(drawn.x));
    if (column + 1 < width) out[column + 1] = down<T>(static_cast<Acc<T>>(drawn.y));
  }
}

template <class T>
void launch_draw(const Context& context, T* to, std::int64_t stride, std::int64_t rows,
                 std::int64_t width, const DrawOptions& options) {
  const std::int64_t blocks = ceil_div<std::int64_t>(rows * (width / 2 + 1), 256);
  const std::int64_t most = static_cast<std::int64_t>(context.multiprocessors) * 32;
  launch_kernel(context.stream, draw_kernel<T>, static_cast<unsigned>(std::min(blocks, most)), 256,
                0, to, stride, rows, width, options);
}

// Draws on the device and copies back: the link is faster than the host's cores.
template <class T>
void draw_on_host(const Context& context, T* to, std::int64_t stride, std::int64_t rows,
                  std::int64_t width, const DrawOptions& options) {
  constexpr std::int64_t kElements =
      (std::int64_t{32} << 20) / static_cast<std::int64_t>(sizeof(T));
  T* const drawn = context.workspace.get<T>(static_cast<std::size_t>(kElements), context.stream);
  const std::int64_t columns = std::min(width, kElements), most_rows = kElements / columns;
  for (std::int64_t row = 0; row < rows; row += most_rows)
    for (std::int64_t column = 0; column < width; column += columns) {
      const std::int64_t high = std::min(most_rows, rows - row),
                         wide = std::min(columns, width - column);
      DrawOptions here = options;
      here.first += row * options.row_stride + column;
      launch_draw(context, drawn, wide, high, wide, here);
      const std::size_t bytes = static_cast<std::size_t>(wide) * sizeof(T);
      const std::size_t pitch = high == 1 ? bytes : static_cast<std::size_t>(stride) * sizeof(T);
      copy_rows({to + row * stride + column, pitch}, {drawn, bytes}, bytes,
                static_cast<std::size_t>(high), Copy::ToHost, context.stream);
    }
  synchronize(context.stream);
}

}  // namespace

void draw(const Context& context, Tensor x, const DrawOptions& options) {
  if (x.elements() == 0) return;
  visit_device_float(x.dtype(), [&]<class T>() {
    const auto run = is_on_device(x.data()) ? launch_draw<T> : draw_on_host<T>;
    run(context, data_of<T>(x), x.stride(0), x.extent(0), x.extent(1), options);
  });
}

}  // namespace kintsugi::gpu
