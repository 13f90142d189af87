// The element-wise parts of a Muon update.
#include <algorithm>
#include <bit>
#include <cmath>

#include "backend/cpu/cpu_backend_impl.h"
#include "core/philox.h"

namespace kintsugi {
namespace {

constexpr std::int64_t kElementsPerTask = 1 << 14;

template <class M, class A>
M rounded(A value, const MomentumOptions& options, std::int64_t i) {
  if constexpr (std::is_same_v<M, bf16> && std::is_same_v<A, float>) {
    if (options.rounding_key != 0) {
      const auto element = static_cast<std::uint64_t>(options.first_element + i);
      M result;
      result.bits = round_stochastically(std::bit_cast<std::uint32_t>(value),
                                         rounding_bits(options.rounding_key, element));
      return result;
    }
  }
  return static_cast<M>(value);
}

// D is the type of the direction, M of the moment, A of the gradient.
template <class D, class M, class A>
struct Momentum {
  D* direction;  // may be nullptr
  M* moment;
  const A* gradient;
  A scale, momentum, rest;
  const MomentumOptions& options;

  void run(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t i = begin; i < end; ++i) {
      const A g = gradient[i] * scale;
      const A m = momentum * static_cast<A>(moment[i]) + rest * g;
      moment[i] = rounded<M>(m, options, i);
      if (direction != nullptr)
        direction[i] = static_cast<D>(options.nesterov ? momentum * m + rest * g : m);
    }
  }
};

template <class F>
void visit_moment(DType moment, DType gradient, F&& f) {
  if (gradient == DType::F64) return f.template operator()<double, double>();
  if (moment == DType::BF16) return f.template operator()<bf16, float>();
  f.template operator()<float, float>();
}

}  // namespace

void CpuBackend::do_momentum(Tensor direction, Tensor moment, Tensor gradient,
                             Tensor gradient_scale, const MomentumOptions& options) {
  const std::int64_t n = moment.elements();
  visit_moment(moment.dtype(), gradient.dtype(), [&]<class M, class A>() {
    const A scale = gradient_scale.as<A>()[0];
    if (!std::isfinite(scale)) {
      if (direction && n > 0) fill(direction, 0.0);
      return;
    }
    visit_float(direction ? direction.dtype() : gradient.dtype(), [&]<class D>() {
      const Momentum<D, M, A> work{.direction = direction ? direction.as<D>() : nullptr,
                                   .moment = moment.as<M>(),
                                   .gradient = gradient.as<A>(),
                                   .scale = scale,
                                   .momentum = static_cast<A>(options.momentum),
                                   .rest = static_cast<A>(1.0 - options.momentum),
                                   .options = options};
      pool_.run_ranges(n, kElementsPerTask,
                       [&](std::int64_t begin, std::int64_t end, int) { work.run(begin, end); });
    });
  });
}

void CpuBackend::do_divide_by_norms(Tensor x, Tensor squared_norms, double eps) {
  const std::int64_t batch = x.extent(0), n = batch == 0 ? 0 : x.elements() / batch;
  visit_float(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for (std::int64_t i = 0; i < batch; ++i) {
      const A norm = std::max(std::sqrt(squared_norms.as<A>()[i]), static_cast<A>(eps));
      T* const values = x.as<T>() + i * n;
      pool_.run_ranges(n, kElementsPerTask, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t k = begin; k < end; ++k)
          values[k] = static_cast<T>(static_cast<A>(values[k]) / norm);
      });
    }
  });
}

void CpuBackend::do_descend(Tensor weight, Tensor master, Tensor direction, Tensor gradient_scale,
                            double shrink, double rate) {
  const std::int64_t n = weight.elements();
  visit_float(weight.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    if (!std::isfinite(gradient_scale.as<A>()[0])) return;
    visit_float(direction.dtype(), [&]<class D>() {
      const auto keep = static_cast<A>(shrink), step = static_cast<A>(rate);
      T* const w = weight.as<T>();
      A* const precise = master.as<A>();
      const D* const d = direction.as<D>();
      pool_.run_ranges(n, kElementsPerTask, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i) {
          precise[i] = keep * precise[i] - step * static_cast<A>(static_cast<Accumulator<D>>(d[i]));
          if constexpr (!std::is_same_v<T, A>) w[i] = static_cast<T>(precise[i]);
        }
      });
    });
  });
}

}  // namespace kintsugi
