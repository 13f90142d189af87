// Softmax, loss and gradient of one chunk of logits, in place.
#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/vector_math.h"

namespace kintsugi {

void CpuBackend::cross_entropy(Tensor losses, Tensor logits, Tensor targets,
                               double gradient_scale) {
  const std::int64_t rows = logits.extent(0), vocabulary = logits.extent(1);
  KINTSUGI_CHECK(losses.elements() == rows && targets.elements() == rows, "losses {} of logits {}",
                 to_string(losses.shape()), to_string(logits.shape()));
  visit_float(logits.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const std::int32_t* target = targets.as<std::int32_t>();
    A* loss = losses.as<A>();
    pool_.run_ranges(rows, 4, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        T* z = logits.as<T>() + row * logits.stride(0);
        if (target[row] < 0) {
          loss[row] = A(0);
          if (gradient_scale != 0) std::fill(z, z + vocabulary, static_cast<T>(A(0)));
          continue;
        }
        A largest = static_cast<A>(z[0]), total = 0;
#pragma omp simd reduction(max : largest)
        for (std::int64_t i = 0; i < vocabulary; ++i)
          largest = std::max(largest, static_cast<A>(z[i]));
#pragma omp simd reduction(+ : total)
        for (std::int64_t i = 0; i < vocabulary; ++i)
          total += vector_exp(static_cast<A>(z[i]) - largest);
        // Relative to the largest logit throughout: the logarithm of the sum would vanish beside a
        // large one.
        const A target_logit = static_cast<A>(z[target[row]]) - largest;
        loss[row] = std::log(total) - target_logit;
        if (gradient_scale == 0) continue;
        const A scale = static_cast<A>(gradient_scale), share = scale / total;
#pragma omp simd
        for (std::int64_t i = 0; i < vocabulary; ++i)
          z[i] = static_cast<T>(share * vector_exp(static_cast<A>(z[i]) - largest));
        z[target[row]] = static_cast<T>(share * std::exp(target_logit) - scale);
      }
    });
  });
}

}  // namespace kintsugi
