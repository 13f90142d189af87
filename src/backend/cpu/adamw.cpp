// AdamW with decoupled weight decay, one pass over everything it touches.
#include <cmath>

#include "backend/cpu/cpu_backend_impl.h"
#include "core/stochastic_rounding.h"

namespace kintsugi {
namespace {

// The scalars of one step in the precision of the update.
template <class A>
struct Step {
  explicit Step(const AdamWOptions& o)
      : beta1(static_cast<A>(o.beta1)),
        beta2(static_cast<A>(o.beta2)),
        rest1(static_cast<A>(1.0 - o.beta1)),  // in double: fp32 would lose digits of 1 - 0.999
        rest2(static_cast<A>(1.0 - o.beta2)),
        eps(static_cast<A>(o.eps)),
        shrink(static_cast<A>(1.0 - o.lr * o.weight_decay)),
        rate(static_cast<A>(o.lr / (1.0 - std::pow(o.beta1, static_cast<double>(o.step))))),
        correction(
            static_cast<A>(1.0 / std::sqrt(1.0 - std::pow(o.beta2, static_cast<double>(o.step))))),
        rounding_key(o.rounding_key),
        first_element(static_cast<std::uint64_t>(o.first_element)) {}
  A beta1, beta2, rest1, rest2, eps, shrink, rate, correction;
  std::uint64_t rounding_key, first_element;
};

template <class T, class M, class A>
void update(T* weight, A* master, M* moment1, M* moment2, const A* gradient, A scale,
            const Step<A>& s, std::int64_t begin, std::int64_t end) {
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    const A g = gradient[i] * scale;
    const A m1 = s.beta1 * static_cast<A>(moment1[i]) + s.rest1 * g;
    const A m2 = s.beta2 * static_cast<A>(moment2[i]) + s.rest2 * g * g;
    const A updated = master[i] * s.shrink - s.rate * m1 / (std::sqrt(m2) * s.correction + s.eps);
    moment1[i] = static_cast<M>(m1);
    moment2[i] = static_cast<M>(m2);
    master[i] = updated;
    weight[i] = static_cast<T>(updated);
  }
}

// The same with bf16 moments that are rounded by chance.
template <class T>
void update_by_chance(T* weight, float* master, bf16* moment1, bf16* moment2, const float* gradient,
                      float scale, const Step<float>& s, std::int64_t begin, std::int64_t end) {
  const auto rounded = [](float value, std::uint32_t bits) {
    bf16 result;
    result.bits = round_by_chance(std::bit_cast<std::uint32_t>(value), bits);
    return result;
  };
  for (std::int64_t i = begin; i < end; ++i) {
    float m1 = static_cast<float>(moment1[i]), m2 = static_cast<float>(moment2[i]);
    update(weight + i, master + i, &m1, &m2, gradient + i, scale, s, 0, 1);
    const std::uint32_t bits =
        rounding_bits(s.rounding_key, s.first_element + static_cast<std::uint64_t>(i));
    moment1[i] = rounded(m1, bits);
    moment2[i] = rounded(m2, bits >> 16);
  }
}

}  // namespace

void CpuBackend::adamw(Tensor weight, Tensor master, Tensor moment1, Tensor moment2,
                       Tensor gradient, Tensor gradient_scale, const AdamWOptions& options) {
  const std::int64_t n = weight.elements();
  KINTSUGI_CHECK(master.elements() == n && moment1.elements() == n && moment2.elements() == n &&
                     gradient.elements() == n,
                 "adamw over tensors of different lengths");
  visit_float(weight.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const A scale = gradient_scale.as<A>()[0];
    if (!std::isfinite(scale)) return;
    const Step<A> step(options);
    pool_.run_ranges(n, 1 << 14, [&](std::int64_t begin, std::int64_t end, int) {
      if constexpr (std::is_same_v<A, float>) {
        if (moment1.dtype() == DType::BF16 && options.rounding_key != 0)
          return update_by_chance(weight.as<T>(), master.as<A>(), moment1.as<bf16>(),
                                  moment2.as<bf16>(), gradient.as<A>(), scale, step, begin, end);
        if (moment1.dtype() == DType::BF16)
          return update(weight.as<T>(), master.as<A>(), moment1.as<bf16>(), moment2.as<bf16>(),
                        gradient.as<A>(), scale, step, begin, end);
      }
      update(weight.as<T>(), master.as<A>(), moment1.as<A>(), moment2.as<A>(), gradient.as<A>(),
             scale, step, begin, end);
    });
  });
}

}  // namespace kintsugi
