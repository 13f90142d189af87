// Sums over whole tensors in a fixed order (blocks of 65536 elements, each summed in double, then
// the blocks in order), and the clipping factor computed from them.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/cpu_backend_impl.h"

namespace kintsugi {
namespace {

constexpr std::int64_t kReductionBlock = 65536;

}  // namespace

template <class F>
double CpuBackend::reduce(std::int64_t n, const F& sum_range) {
  const std::int64_t blocks = (n + kReductionBlock - 1) / kReductionBlock;
  const std::size_t bytes = static_cast<std::size_t>(blocks) * sizeof(double);
  if (partials_.size() < bytes) partials_.resize(bytes);
  double* partials = reinterpret_cast<double*>(partials_.data());
  pool_.run(blocks, [&](std::int64_t block, int) {
    partials[block] =
        sum_range(block * kReductionBlock, std::min(n, (block + 1) * kReductionBlock));
  });
  double total = 0;
  for (std::int64_t block = 0; block < blocks; ++block) total += partials[block];
  return total;
}

void CpuBackend::do_sum(Tensor out, Tensor x) {
  visit_float(x.dtype(), [&]<class T>() {
    const T* data = x.as<T>();
    out.as<Accumulator<T>>()[0] +=
        static_cast<Accumulator<T>>(reduce(x.elements(), [&](std::int64_t begin, std::int64_t end) {
          double total = 0;
#pragma omp simd reduction(+ : total)
          for (std::int64_t i = begin; i < end; ++i) total += static_cast<Accumulator<T>>(data[i]);
          return total;
        }));
  });
}

void CpuBackend::do_squared_norm(Tensor out, Tensor x) {
  visit_float(x.dtype(), [&]<class T>() {
    const T* data = x.as<T>();
    out.as<Accumulator<T>>()[0] +=
        static_cast<Accumulator<T>>(reduce(x.elements(), [&](std::int64_t begin, std::int64_t end) {
          double total = 0;
#pragma omp simd reduction(+ : total)
          for (std::int64_t i = begin; i < end; ++i) {
            const double value = static_cast<Accumulator<T>>(data[i]);
            total += value * value;
          }
          return total;
        }));
  });
}

void CpuBackend::do_clip_scale(Tensor scale, Tensor squared_norm, const ClipOptions& options) {
  visit_float(scale.dtype(), [&]<class T>() {
    const auto value_of = [](const Tensor& x) {
      return static_cast<double>(static_cast<Accumulator<T>>(x.as<T>()[0]));
    };
    const double clip = options.clip, unscale = options.unscale;
    const double norm = unscale * std::sqrt(value_of(squared_norm));
    double factor = clip > 0 && norm > clip ? unscale * clip / norm : unscale;
    const bool outlier =
        norm > options.norm_limit || (options.loss && value_of(options.loss) > options.loss_limit);
    if (!std::isfinite(norm) || outlier) factor = std::numeric_limits<double>::quiet_NaN();
    scale.as<T>()[0] = static_cast<T>(static_cast<Accumulator<T>>(factor));
  });
}

}  // namespace kintsugi
