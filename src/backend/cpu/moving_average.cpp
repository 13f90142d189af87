// The exponential moving average of the weights.
#include <cmath>

#include "backend/cpu/cpu_backend_impl.h"

namespace kintsugi {

void CpuBackend::moving_average(Tensor average, Tensor x, double rate, Tensor scale) {
  const std::int64_t n = average.elements();
  KINTSUGI_CHECK(x.elements() == n && x.dtype() == average.dtype() && scale.dtype() == x.dtype(),
                 "moving_average: {} of {}", to_string(average.shape()), to_string(x.shape()));
  visit_float(average.dtype(), [&]<class T>() {
    if constexpr (sizeof(T) >= 4) {
      if (!std::isfinite(scale.as<T>()[0])) return;
      T* to = average.as<T>();
      const T* from = x.as<T>();
      const T r = static_cast<T>(rate);
      pool_.run_ranges(n, 1 << 14, [&](std::int64_t begin, std::int64_t end, int) {
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) to[i] += r * (from[i] - to[i]);
      });
    } else {
      failure("moving_average: {} is not an accumulator type", to_string(average.dtype()));
    }
  });
}

}  // namespace kintsugi
