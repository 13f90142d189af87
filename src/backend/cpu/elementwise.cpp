// Copies with conversion, fills, sums and moving averages of whole tensors.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/rows.h"

namespace kintsugi {
namespace {

constexpr std::int64_t kRange = 1 << 14;  // elements of a thread's range

// A view with two or three dimensions: x itself, or a contiguous tensor as one row.
Tensor as_rows(const Tensor& x) {
  if (x.rank() == 2 || x.rank() == 3) return x;
  return x.view({1, x.elements()});
}

template <class D, class S>
D convert(S value) {
  // 16-bit types convert through float only.
  if constexpr (std::is_same_v<S, double> && sizeof(D) >= 4)
    return static_cast<D>(value);
  else
    return static_cast<D>(static_cast<float>(value));
}

}  // namespace

void CpuBackend::do_copy(Tensor destination, Tensor source) {
  if (destination.contiguous() && source.contiguous()) {
    destination = destination.view({1, destination.elements()});
    source = source.view({1, source.elements()});
  } else if (source.rank() == 4) {
    for (std::int64_t i = 0; i < source.extent(0); ++i)
      do_copy(destination.select(0, i), source.select(0, i));
    return;
  } else {
    destination = as_rows(destination);
    source = as_rows(source);
  }
  if (destination.dtype() == source.dtype() && destination.contiguous() && source.contiguous()) {
    std::memcpy(destination.data(), source.data(), source.bytes());
    return;
  }
  visit_float(destination.dtype(), [&]<class D>() {
    visit_float(source.dtype(), [&]<class S>() {
      const Rows<D> to(destination);
      const Rows<S> from(source);
      const std::int64_t width = to.width;
      const auto convert_range = [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
        D* out = to[row];
        const S* in = from[row];
        for (std::int64_t i = begin; i < end; ++i) out[i] = convert<D>(in[i]);
      };
      if (to.count == 1) {
        pool_.run_ranges(width, kRange, [&](std::int64_t begin, std::int64_t end, int) {
          convert_range(0, begin, end);
        });
        return;
      }
      const std::int64_t rows =
          std::max<std::int64_t>(1, kRange / std::max<std::int64_t>(1, width));
      pool_.run_ranges(to.count, rows, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t row = begin; row < end; ++row) convert_range(row, 0, width);
      });
    });
  });
}

void CpuBackend::fill(Tensor x, double value) {
  KINTSUGI_CHECK(x.contiguous(), "fill of a strided tensor");
  visit_float(x.dtype(), [&]<class T>() {
    const T v = static_cast<T>(static_cast<Accumulator<T>>(value));
    T* data = x.as<T>();
    pool_.run_ranges(x.elements(), kRange, [&](std::int64_t begin, std::int64_t end, int) {
      std::fill(data + begin, data + end, v);
    });
  });
}

void CpuBackend::do_add(Tensor y, Tensor x) {
  visit_float(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const auto add = [&]<class Y>(Y* to) {
      const T* from = x.as<T>();
      pool_.run_ranges(y.elements(), kRange, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i)
          to[i] = static_cast<Y>(static_cast<A>(to[i]) + static_cast<A>(from[i]));
      });
    };
    y.dtype() == x.dtype() ? add(y.as<T>()) : add(y.as<A>());
  });
}

void CpuBackend::do_sum_heads(Tensor y, Tensor x) {
  const std::int64_t tokens = x.extent(0), heads = x.extent(1), dim = x.extent(2);
  visit_float(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    pool_.run_ranges(tokens, 16, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t token = begin; token < end; ++token) {
        const T* const first = x.as<T>() + token * x.stride(0);
        T* const to = y.as<T>() + token * y.stride(0);
        for (std::int64_t i = 0; i < dim; ++i) {
          A sum = 0;
          for (std::int64_t head = 0; head < heads; ++head)
            sum += static_cast<A>(first[head * x.stride(1) + i]);
          to[i] = static_cast<T>(sum);
        }
      }
    });
  });
}

void CpuBackend::do_moving_average(Tensor average, Tensor x, double rate, Tensor scale) {
  const std::int64_t n = average.elements();
  visit_float(average.dtype(), [&]<class T>() {
    if constexpr (sizeof(T) >= 4) {
      if (!std::isfinite(scale.as<T>()[0])) return;
      T* to = average.as<T>();
      const T* from = x.as<T>();
      const T r = static_cast<T>(rate);
      pool_.run_ranges(n, kRange, [&](std::int64_t begin, std::int64_t end, int) {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) to[i] += r * (from[i] - to[i]);
      });
    }
  });
}

}  // namespace kintsugi
