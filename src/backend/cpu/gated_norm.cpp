// RMSNorm without a weight, times a gate: y = silu(gate) * x * rstd.
#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/rows.h"
#include "backend/cpu/vector_math.h"

namespace kintsugi {

void CpuBackend::do_gated_norm_forward(Tensor y, Tensor rstd, Tensor x, Tensor gate, double eps) {
  visit_float(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const Rows<T> in(x), gates(gate), out(y);
    const std::int64_t width = in.width;
    A* scale = rstd.as<A>();
    pool_.run_ranges(in.count, 16, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T *from = in[row], *g = gates[row];
        T* to = out[row];
        const A r = rstd_of(sum_of_squares(from, width), width, eps);
        scale[row] = r;
#pragma omp simd
        for (std::int64_t i = 0; i < width; ++i) {
          const A value = static_cast<A>(g[i]);
          to[i] = static_cast<T>(value * sigmoid(value) * (static_cast<A>(from[i]) * r));
        }
      }
    });
  });
}

// With h = x * rstd and g = dy * silu(gate): dx = rstd * (g - h * mean(g * h)), and
// dgate = dy * h * silu'(gate).
void CpuBackend::do_gated_norm_backward(Tensor dx, Tensor dgate, Tensor dy, Tensor x, Tensor gate,
                                        Tensor rstd) {
  visit_float(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const Rows<T> in(x), gates(gate), din(dx), dgates(dgate), dout(dy);
    const std::int64_t width = in.width;
    const A* scale = rstd.as<A>();
    pool_.run_ranges(in.count, 16, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T *from = in[row], *g = gates[row], *gradient = dout[row];
        T *to = din[row], *to_gate = dgates[row];
        const A r = scale[row];
        A dot = 0;
#pragma omp simd reduction(+ : dot)
        for (std::int64_t i = 0; i < width; ++i) {
          const A value = static_cast<A>(g[i]);
          dot += static_cast<A>(gradient[i]) * value * sigmoid(value) * static_cast<A>(from[i]) * r;
        }
        const A mean = dot / static_cast<A>(width);
#pragma omp simd
        for (std::int64_t i = 0; i < width; ++i) {
          const A value = static_cast<A>(g[i]), s = sigmoid(value), d = static_cast<A>(gradient[i]);
          const A h = static_cast<A>(from[i]) * r;
          to[i] = static_cast<T>(r * (d * value * s - h * mean));
          to_gate[i] = static_cast<T>(d * h * s * (A(1) + value * (A(1) - s)));
        }
      }
    });
  });
}

}  // namespace kintsugi
