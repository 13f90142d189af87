// RMSNorm: y = x * rstd * w with rstd = 1 / sqrt(mean(x^2) + eps).
#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/rows.h"

namespace kintsugi {
namespace {

template <class T>
void scale_row(T* y, const T* x, const T* weight, Accumulator<T> rstd, std::int64_t width) {
  using A = Accumulator<T>;
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i)
    y[i] = static_cast<T>(static_cast<A>(x[i]) * rstd * static_cast<A>(weight[i]));
}

}  // namespace

void CpuBackend::do_rms_norm_forward(Tensor y, Tensor rstd, Tensor x, Tensor weight, double eps,
                                     Maxima maxima) {
  visit_float(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const Rows<T> in(x), out(y);
    A* scale = rstd.as<A>();
    pool_.run_ranges(in.count, 16, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        scale[row] = rstd_of(sum_of_squares(in[row], in.width), in.width, eps);
        scale_row(out[row], in[row], weight.as<T>(), scale[row], in.width);
      }
    });
  });
  if (maxima) do_find_maxima(maxima, y);
}

void CpuBackend::do_rms_norm_partial(Tensor sums, Tensor x) {
  visit_float(x.dtype(), [&]<class T>() {
    const Rows<T> in(x);
    auto* const squares = sums.as<Accumulator<T>>();
    pool_.run_ranges(in.count, 16, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row)
        squares[row] = sum_of_squares(in[row], in.width);
    });
  });
}

void CpuBackend::do_rms_norm_merged(Tensor y, Tensor rstd, Tensor x, Tensor weight, Tensor sums,
                                    std::int64_t width, double eps) {
  visit_float(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const Rows<T> in(x), out(y);
    const A* squares = sums.as<A>();
    A* scale = rstd.as<A>();
    pool_.run_ranges(in.count, 16, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        scale[row] = rstd_of(squares[row], width, eps);
        scale_row(out[row], in[row], weight.as<T>(), scale[row], in.width);
      }
    });
  });
}

// With g = dy * w and h = x * rstd: dx = rstd * (g - h * mean(g * h)), and dw = sum over the rows
// of dy * h.
void CpuBackend::do_rms_norm_backward(Tensor dx, Tensor dweight, Tensor dy, Tensor x, Tensor weight,
                                      Tensor rstd, Tensor residual_gradient, Maxima maxima) {
  visit_float(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const Rows<T> in(x), din(dx), dout(dy), residual(residual_gradient ? residual_gradient : dx);
    const bool adds = static_cast<bool>(residual_gradient);
    const std::int64_t width = in.width;
    const T* w = weight.as<T>();
    const A* scale = rstd.as<A>();
    A* const target = dweight ? dweight.as<A>() : nullptr;
    reduce_columns<A>(
        in.count, width, 1, &target, [&](std::int64_t begin, std::int64_t end, A* sums) {
          for (std::int64_t row = begin; row < end; ++row) {
            const T *from = in[row], *gradient = dout[row], *extra = residual[row];
            T* to = din[row];
            const A r = scale[row];
            A dot = 0;
#pragma omp simd reduction(+ : dot)
            for (std::int64_t i = 0; i < width; ++i) {
              const A h = static_cast<A>(from[i]) * r, g = static_cast<A>(gradient[i]);
              sums[i] += g * h;
              dot += g * static_cast<A>(w[i]) * h;
            }
            const A mean = dot / static_cast<A>(width);
#pragma omp simd
            for (std::int64_t i = 0; i < width; ++i) {
              const A h = static_cast<A>(from[i]) * r;
              const A value = r * (static_cast<A>(gradient[i]) * static_cast<A>(w[i]) - h * mean);
              to[i] = static_cast<T>(adds ? static_cast<A>(extra[i]) + value : value);
            }
          }
        });
  });
  if (maxima) do_find_maxima(maxima, dx);
}

void CpuBackend::do_rms_norm_backward_partial(Tensor sums, Tensor dy, Tensor x, Tensor weight) {
  visit_float(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const Rows<T> in(x), dout(dy);
    const T* w = weight.as<T>();
    A* const dots = sums.as<A>();
    pool_.run_ranges(in.count, 16, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T *from = in[row], *gradient = dout[row];
        A dot = 0;
#pragma omp simd reduction(+ : dot)
        for (std::int64_t i = 0; i < in.width; ++i)
          dot += static_cast<A>(gradient[i]) * static_cast<A>(w[i]) * static_cast<A>(from[i]);
        dots[row] = dot;
      }
    });
  });
}

void CpuBackend::do_rms_norm_backward_merged(Tensor dx, Tensor dweight, Tensor dy, Tensor x,
                                             Tensor weight, Tensor rstd, Tensor sums,
                                             std::int64_t width) {
  visit_float(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const Rows<T> in(x), din(dx), dout(dy);
    const T* w = weight.as<T>();
    const A *scale = rstd.as<A>(), *dots = sums.as<A>();
    A* const target = dweight ? dweight.as<A>() : nullptr;
    reduce_columns<A>(
        in.count, in.width, 1, &target, [&](std::int64_t begin, std::int64_t end, A* columns) {
          for (std::int64_t row = begin; row < end; ++row) {
            const T *from = in[row], *gradient = dout[row];
            T* to = din[row];
            const A r = scale[row];
#pragma omp simd
            for (std::int64_t i = 0; i < in.width; ++i)
              columns[i] += static_cast<A>(gradient[i]) * (static_cast<A>(from[i]) * r);
            const A mean = dots[row] * r / static_cast<A>(width);
#pragma omp simd
            for (std::int64_t i = 0; i < in.width; ++i) {
              const A h = static_cast<A>(from[i]) * r, g = static_cast<A>(gradient[i]);
              to[i] = static_cast<T>(r * (g * static_cast<A>(w[i]) - h * mean));
            }
          }
        });
  });
}

}  // namespace kintsugi
