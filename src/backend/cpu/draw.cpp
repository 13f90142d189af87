// Initial weights: random numbers by global index.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "backend/cpu/cpu_backend_impl.h"
#include "core/philox.h"

namespace kintsugi {
namespace {

struct Pair {
  double even, odd;
};

// Elements 2i and 2i + 1: Box-Muller on two words of Philox draw i.
Pair draw_pair(const DrawOptions& options, std::uint64_t i) {
  const Philox::Block words = Philox::draw(options.key, i);
  if (options.distribution == Distribution::Uniform)
    return {options.scale * (static_cast<double>(words[0]) * 0x1.0p-31 - 1.0),
            options.scale * (static_cast<double>(words[1]) * 0x1.0p-31 - 1.0)};
  const double u1 = (static_cast<double>(words[0]) + 1.0) * 0x1.0p-32,
               u2 = static_cast<double>(words[1]) * 0x1.0p-32;
  const double radius = std::sqrt(-2.0 * std::log(u1)), angle = 2.0 * std::numbers::pi * u2;
  return {options.scale * (radius * std::cos(angle)), options.scale * (radius * std::sin(angle))};
}

// Elements [first, first + count) of the whole parameter.
template <class T>
void draw_range(T* to, const DrawOptions& options, std::int64_t first, std::int64_t count) {
  const auto rounded = [](double x) { return static_cast<T>(static_cast<Accumulator<T>>(x)); };
  std::int64_t i = 0;
  if (first % 2 != 0 && count > 0)
    to[i++] = rounded(draw_pair(options, static_cast<std::uint64_t>(first) / 2).odd);
  for (; i < count; i += 2) {
    const Pair pair = draw_pair(options, static_cast<std::uint64_t>(first + i) / 2);
    to[i] = rounded(pair.even);
    if (i + 1 < count) to[i + 1] = rounded(pair.odd);
  }
}

}  // namespace

void CpuBackend::do_draw(Tensor x, const DrawOptions& options) {
  const std::int64_t width = x.extent(1);
  visit_float(x.dtype(), [&]<class T>() {
    T* const to = x.as<T>();
    pool_.run_ranges(x.elements(), 1 << 12, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t at = begin; at < end;) {
        const std::int64_t row = at / width, column = at % width,
                           count = std::min(width - column, end - at);
        draw_range(to + row * x.stride(0) + column, options,
                   options.first + row * options.row_stride + column, count);
        at += count;
      }
    });
  });
}

}  // namespace kintsugi
