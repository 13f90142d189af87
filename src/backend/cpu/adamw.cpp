// AdamW with decoupled weight decay; reads and writes every operand once.
#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "backend/cpu/cpu_backend_impl.h"
#include "core/philox.h"

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

// The number of elements that are converted to fp32, updated and rounded at a time. Conversion and
// arithmetic are separate loops because GCC does not vectorize them in one.
constexpr std::int64_t kBlock = 512;

template <class A>
void update(A* master, A* moment1, A* moment2, const A* gradient, A scale, const Step<A>& s,
            std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const A g = gradient[i] * scale;
    const A m1 = s.beta1 * moment1[i] + s.rest1 * g;
    const A m2 = s.beta2 * moment2[i] + s.rest2 * g * g;
    master[i] = master[i] * s.shrink - s.rate * m1 / (std::sqrt(m2) * s.correction + s.eps);
    moment1[i] = m1;
    moment2[i] = m2;
  }
}

template <class To, class From>
void convert(To* to, const From* from, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    if constexpr (sizeof(To) == 2)
      to[i].bits = To(from[i]).bits;  // GCC does not vectorize assignments of structs
    else
      to[i] = static_cast<To>(from[i]);
  }
}

// Rounds bf16 moments stochastically. The random bits of element i are those of first + i.
void round_moments(bf16* moment1, bf16* moment2, const float* wide1, const float* wide2,
                   std::uint64_t key, std::uint64_t first, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t bits = rounding_bits(key, first + static_cast<std::uint64_t>(i));
    moment1[i].bits = round_stochastically(std::bit_cast<std::uint32_t>(wide1[i]), bits);
    moment2[i].bits = round_stochastically(std::bit_cast<std::uint32_t>(wide2[i]), bits >> 16);
  }
}

template <class T, class M, class A>
struct Operands {
  T* weight;
  A* master;  // may be the weight itself
  M *moment1, *moment2;
  const A* gradient;
};

template <class T, class M, class A>
void update(const Operands<T, M, A>& x, A scale, const Step<A>& s, std::int64_t begin,
            std::int64_t end) {
  constexpr bool kWiden = !std::is_same_v<M, A>;
  std::array<A, kWiden ? kBlock : 1> wide1, wide2;
  for (std::int64_t at = begin; at < end; at += kBlock) {
    const std::int64_t n = std::min(kBlock, end - at);
    if constexpr (kWiden) {
      convert(wide1.data(), x.moment1 + at, n);
      convert(wide2.data(), x.moment2 + at, n);
      update(x.master + at, wide1.data(), wide2.data(), x.gradient + at, scale, s, n);
      if (s.rounding_key != 0) {
        round_moments(x.moment1 + at, x.moment2 + at, wide1.data(), wide2.data(), s.rounding_key,
                      s.first_element + static_cast<std::uint64_t>(at), n);
      } else {
        convert(x.moment1 + at, wide1.data(), n);
        convert(x.moment2 + at, wide2.data(), n);
      }
    } else {
      update(x.master + at, x.moment1 + at, x.moment2 + at, x.gradient + at, scale, s, n);
    }
    if (static_cast<void*>(x.weight) != x.master) convert(x.weight + at, x.master + at, n);
  }
}

}  // namespace

void CpuBackend::do_adamw(Tensor weight, Tensor master, Tensor moment1, Tensor moment2,
                          Tensor gradient, Tensor gradient_scale, const AdamWOptions& options) {
  const std::int64_t n = weight.elements();
  visit_float(weight.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const A scale = gradient_scale.as<A>()[0];
    if (!std::isfinite(scale)) return;
    const Step<A> step(options);
    const auto update_all = [&]<class M>() {
      const Operands<T, M, A> operands{weight.as<T>(), master.as<A>(), moment1.as<M>(),
                                       moment2.as<M>(), gradient.as<A>()};
      pool_.run_ranges(n, 1 << 14, [&](std::int64_t begin, std::int64_t end, int) {
        update(operands, scale, step, begin, end);
      });
    };
    if constexpr (std::is_same_v<A, float>)
      if (moment1.dtype() == DType::BF16) return update_all.template operator()<bf16>();
    update_all.template operator()<A>();
  });
}

}  // namespace kintsugi
