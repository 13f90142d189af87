// SwiGLU: out = silu(gate) * up, with gate and up side by side in one row.
#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/vector_math.h"

namespace kintsugi {

void CpuBackend::do_swiglu_forward(Tensor out, Tensor gate_up, Maxima maxima) {
  const std::int64_t rows = out.extent(0), width = out.extent(1);
  visit_float(out.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    pool_.run_ranges(rows, 8, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T *gate = gate_up.as<T>() + row * gate_up.stride(0), *up = gate + width;
        T* to = out.as<T>() + row * out.stride(0);
#pragma omp simd
        for (std::int64_t i = 0; i < width; ++i) {
          const A g = static_cast<A>(gate[i]);
          to[i] = static_cast<T>(g * sigmoid(g) * static_cast<A>(up[i]));
        }
      }
    });
  });
  if (maxima) do_find_maxima(maxima, out);
}

void CpuBackend::do_swiglu_backward(Tensor dgate_up, Tensor dout, Tensor gate_up, Maxima maxima) {
  const std::int64_t rows = dout.extent(0), width = dout.extent(1);
  visit_float(dout.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    pool_.run_ranges(rows, 8, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T *gate = gate_up.as<T>() + row * gate_up.stride(0), *up = gate + width;
        const T* from = dout.as<T>() + row * dout.stride(0);
        T *dgate = dgate_up.as<T>() + row * dgate_up.stride(0), *dup = dgate + width;
#pragma omp simd
        for (std::int64_t i = 0; i < width; ++i) {
          const A g = static_cast<A>(gate[i]), s = sigmoid(g), d = static_cast<A>(from[i]);
          const A u = static_cast<A>(up[i]);
          dgate[i] = static_cast<T>(d * u * s * (A(1) + g * (A(1) - s)));
          dup[i] = static_cast<T>(d * g * s);
        }
      }
    });
  });
  if (maxima) do_find_maxima(maxima, dgate_up);
}

}  // namespace kintsugi
