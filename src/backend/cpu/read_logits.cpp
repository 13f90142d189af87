// What generation reads of logits: the largest, their sum of exp, and the logit of a target.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/vector_math.h"

namespace kintsugi {
namespace {

// The n largest of the values added, the first of equals first.
template <class A>
struct Largest {
  A* values;
  std::int32_t* ids;
  std::int64_t n;

  void clear() const {
    std::fill(values, values + n, -std::numeric_limits<A>::infinity());
    std::fill(ids, ids + n, -1);
  }
  void add(A value, std::int32_t id) const {
    if (!(value > values[n - 1]) && ids[n - 1] >= 0) return;
    std::int64_t i = n - 1;
    for (; i > 0 && (ids[i - 1] < 0 || value > values[i - 1]); --i) {
      values[i] = values[i - 1];
      ids[i] = ids[i - 1];
    }
    values[i] = value;
    ids[i] = id;
  }
};

template <class T>
double log_sum_exp(const T* logits, std::int64_t columns, Accumulator<T> largest) {
  using A = Accumulator<T>;
  constexpr std::int64_t kBlock = 256;
  double total = 0;
  for (std::int64_t j = 0; j < columns; j += kBlock) {
    const std::int64_t end = std::min(columns, j + kBlock);
    A sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = j; i < end; ++i) sum += vector_exp(static_cast<A>(logits[i]) - largest);
    total += static_cast<double>(sum);
  }
  return static_cast<double>(largest) + std::log(total);
}

}  // namespace

void CpuBackend::do_read_logits(Tensor values, Tensor ids, Tensor log_sum, Tensor chosen,
                                Tensor logits, Tensor targets, std::int64_t first_column) {
  const std::int64_t rows = logits.extent(0), columns = logits.extent(1), n = values.extent(1);
  visit_float(logits.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    pool_.run(rows, [&](std::int64_t row, int) {
      const T* x = logits.as<T>() + row * logits.stride(0);
      const Largest<A> largest{values.as<A>() + row * values.stride(0),
                               ids.as<std::int32_t>() + row * ids.stride(0), n};
      largest.clear();
      bool finite = true;
      for (std::int64_t j = 0; j < columns; ++j) {
        const A value = static_cast<A>(x[j]);
        finite = finite && !std::isnan(value);
        largest.add(value, static_cast<std::int32_t>(first_column + j));
      }
      log_sum.as<A>()[row] = finite ? static_cast<A>(log_sum_exp(x, columns, largest.values[0]))
                                    : std::numeric_limits<A>::quiet_NaN();
      if (!targets) return;
      const std::int64_t column = targets.as<std::int32_t>()[row] - first_column;
      chosen.as<A>()[row] = column >= 0 && column < columns ? static_cast<A>(x[column])
                                                            : -std::numeric_limits<A>::infinity();
    });
  });
}

}  // namespace kintsugi
