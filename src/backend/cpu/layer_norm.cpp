// LayerNorm: y = (x - mean) * rstd * w + b.
#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/rows.h"

namespace kintsugi {

void CpuBackend::do_layer_norm_forward(Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor weight,
                                       Tensor bias, double eps, Maxima maxima) {
  visit_float(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const Rows<T> in(x), out(y);
    const std::int64_t width = in.width;
    const T *w = weight.as<T>(), *b = bias.as<T>();
    A *means = mean.as<A>(), *scale = rstd.as<A>();
    pool_.run_ranges(in.count, 16, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* from = in[row];
        T* to = out[row];
        A total = 0, squares = 0;
#pragma omp simd reduction(+ : total)
        for (std::int64_t i = 0; i < width; ++i) total += static_cast<A>(from[i]);
        const A m = total / static_cast<A>(width);
#pragma omp simd reduction(+ : squares)
        for (std::int64_t i = 0; i < width; ++i) {
          const A centred = static_cast<A>(from[i]) - m;
          squares += centred * centred;
        }
        const A r = rstd_of(squares, width, eps);
        means[row] = m;
        scale[row] = r;
#pragma omp simd
        for (std::int64_t i = 0; i < width; ++i)
          to[i] = static_cast<T>((static_cast<A>(from[i]) - m) * r * static_cast<A>(w[i]) +
                                 static_cast<A>(b[i]));
      }
    });
  });
  if (maxima) do_find_maxima(maxima, y);
}

// With g = dy * w and h = (x - mean) * rstd: dx = rstd * (g - mean(g) - h * mean(g * h)).
void CpuBackend::do_layer_norm_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dy,
                                        Tensor x, Tensor weight, Tensor mean, Tensor rstd,
                                        Tensor residual_gradient, Maxima maxima) {
  visit_float(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const Rows<T> in(x), din(dx), dout(dy), residual(residual_gradient ? residual_gradient : dx);
    const bool adds = static_cast<bool>(residual_gradient);
    const std::int64_t width = in.width;
    const T* w = weight.as<T>();
    const A *means = mean.as<A>(), *scale = rstd.as<A>();
    A* const targets[2] = {dweight ? dweight.as<A>() : nullptr, dbias ? dbias.as<A>() : nullptr};
    reduce_columns<A>(
        in.count, width, 2, targets, [&](std::int64_t begin, std::int64_t end, A* sums) {
          A *dw = sums, *db = sums + width;
          for (std::int64_t row = begin; row < end; ++row) {
            const T *from = in[row], *gradient = dout[row], *extra = residual[row];
            T* to = din[row];
            const A m = means[row], r = scale[row];
            A total = 0, dot = 0;
#pragma omp simd reduction(+ : total, dot)
            for (std::int64_t i = 0; i < width; ++i) {
              const A h = (static_cast<A>(from[i]) - m) * r, d = static_cast<A>(gradient[i]);
              const A g = d * static_cast<A>(w[i]);
              dw[i] += d * h;
              db[i] += d;
              total += g;
              dot += g * h;
            }
            const A mean_g = total / static_cast<A>(width), mean_gh = dot / static_cast<A>(width);
#pragma omp simd
            for (std::int64_t i = 0; i < width; ++i) {
              const A h = (static_cast<A>(from[i]) - m) * r;
              const A value =
                  r * (static_cast<A>(gradient[i]) * static_cast<A>(w[i]) - mean_g - h * mean_gh);
              to[i] = static_cast<T>(adds ? static_cast<A>(extra[i]) + value : value);
            }
          }
        });
  });
  if (maxima) do_find_maxima(maxima, dx);
}

}  // namespace kintsugi
