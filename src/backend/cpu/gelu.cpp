// GELU in the tanh form: x/2 (1 + tanh u) = x * sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3).
#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/vector_math.h"

namespace kintsugi {
namespace {

template <class A>
inline constexpr A kTwiceRoot = A(1.5957691216057307118);  // 2 sqrt(2/pi)
template <class A>
inline constexpr A kCubic = A(0.044715);

}  // namespace

void CpuBackend::do_gelu_forward(Tensor out, Tensor x, Maxima maxima) {
  visit_float(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    pool_.run_ranges(x.elements(), 4096, [&](std::int64_t begin, std::int64_t end, int) {
      const T* from = x.as<T>();
      T* to = out.as<T>();
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const A v = static_cast<A>(from[i]);
        to[i] = static_cast<T>(v * sigmoid(kTwiceRoot<A> * (v + kCubic<A> * v * v * v)));
      }
    });
  });
  if (maxima) do_find_maxima(maxima, out);
}

void CpuBackend::do_gelu_backward(Tensor dx, Tensor dout, Tensor x, Maxima maxima) {
  visit_float(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    pool_.run_ranges(x.elements(), 4096, [&](std::int64_t begin, std::int64_t end, int) {
      const T *from = x.as<T>(), *gradient = dout.as<T>();
      T* to = dx.as<T>();
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const A v = static_cast<A>(from[i]);
        const A s = sigmoid(kTwiceRoot<A> * (v + kCubic<A> * v * v * v));
        const A slope = kTwiceRoot<A> * (A(1) + A(3) * kCubic<A> * v * v);
        to[i] = static_cast<T>(static_cast<A>(gradient[i]) * (s + v * s * (A(1) - s) * slope));
      }
    });
  });
  if (maxima) do_find_maxima(maxima, dx);
}

}  // namespace kintsugi
