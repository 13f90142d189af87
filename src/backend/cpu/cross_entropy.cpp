// Softmax, loss and gradient of one chunk of logits, in place; also where a rank holds only some of
// the columns.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/vector_math.h"

namespace kintsugi {
namespace {

// What a row's softmax needs to know of its logits. Relative to the largest logit throughout: the
// logarithm of the sum would vanish beside a large one.
template <class A>
struct RowSum {
  A largest = -std::numeric_limits<A>::infinity();
  A total = 0;  // of exp(logit - largest)
};

template <class T>
RowSum<Accumulator<T>> row_sum(const T* z, std::int64_t columns) {
  using A = Accumulator<T>;
  RowSum<A> sum;
  A largest = sum.largest, total = 0;
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = 0; i < columns; ++i) largest = std::max(largest, static_cast<A>(z[i]));
  if (largest == sum.largest) return sum;  // no columns
#pragma omp simd reduction(+ : total)
  for (std::int64_t i = 0; i < columns; ++i) total += vector_exp(static_cast<A>(z[i]) - largest);
  return {largest, total};
}

// z becomes the gradient. The target's logit is relative to the largest; its column may be beyond
// these.
template <class T>
void row_gradient(T* z, std::int64_t columns, const RowSum<Accumulator<T>>& sum,
                  std::int64_t target, Accumulator<T> target_logit, Accumulator<T> scale) {
  using A = Accumulator<T>;
  const A share = scale / sum.total, largest = sum.largest;
#pragma omp simd
  for (std::int64_t i = 0; i < columns; ++i)
    z[i] = static_cast<T>(share * vector_exp(static_cast<A>(z[i]) - largest));
  if (target >= 0 && target < columns)
    z[target] = static_cast<T>(share * std::exp(target_logit) - scale);
}

// The loss of a row and, if asked for, its gradient. summary() gives the row's sum and the target's
// logit.
template <class T, class F>
void finish_row(Accumulator<T>& loss, T* z, std::int64_t columns, std::int64_t target,
                std::int64_t first_column, double gradient_scale, const F& summary) {
  using A = Accumulator<T>;
  if (target < 0) {
    loss = A(0);
    if (gradient_scale != 0) std::fill(z, z + columns, static_cast<T>(A(0)));
    return;
  }
  const auto [sum, logit] = summary();
  loss = std::log(sum.total) - (logit - sum.largest);
  if (gradient_scale != 0)
    row_gradient(z, columns, sum, target - first_column, logit - sum.largest,
                 static_cast<A>(gradient_scale));
}

}  // namespace

void CpuBackend::cross_entropy(Tensor losses, Tensor logits, Tensor targets,
                               double gradient_scale) {
  const std::int64_t rows = logits.extent(0), vocabulary = logits.extent(1);
  KINTSUGI_CHECK(losses.elements() == rows && targets.elements() == rows, "losses {} of logits {}",
                 to_string(losses.shape()), to_string(logits.shape()));
  visit_float(logits.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const std::int32_t* target = targets.as<std::int32_t>();
    A* loss = losses.as<A>();
    pool_.run_ranges(rows, 4, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        T* z = logits.as<T>() + row * logits.stride(0);
        finish_row(loss[row], z, vocabulary, target[row], 0, gradient_scale, [&] {
          return std::pair(row_sum(z, vocabulary), static_cast<A>(z[target[row]]));
        });
      }
    });
  });
}

void CpuBackend::cross_entropy_partial(Tensor partial, Tensor logits, Tensor targets,
                                       std::int64_t first_column) {
  const std::int64_t rows = logits.extent(0), columns = logits.extent(1);
  KINTSUGI_CHECK(partial.shape() == (Shape{rows, 3}) && targets.elements() == rows,
                 "partial sums {} of logits {}", to_string(partial.shape()),
                 to_string(logits.shape()));
  visit_float(logits.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const std::int32_t* target = targets.as<std::int32_t>();
    pool_.run_ranges(rows, 4, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* z = logits.as<T>() + row * logits.stride(0);
        const RowSum<A> sum = row_sum(z, columns);
        const std::int64_t column = target[row] - first_column;
        const bool here = target[row] >= 0 && column >= 0 && column < columns;
        A* to = partial.as<A>() + row * partial.stride(0);
        to[0] = sum.largest;
        to[1] = sum.total;
        to[2] = here ? static_cast<A>(z[column]) : A(0);
      }
    });
  });
}

void CpuBackend::cross_entropy_merged(Tensor losses, Tensor logits, Tensor targets, Tensor partials,
                                      std::int64_t first_column, double gradient_scale) {
  const std::int64_t rows = logits.extent(0), columns = logits.extent(1),
                     parts = partials.extent(0);
  KINTSUGI_CHECK(losses.elements() == rows && targets.elements() == rows &&
                     partials.shape() == (Shape{parts, rows, 3}),
                 "losses {} of logits {} with sums {}", to_string(losses.shape()),
                 to_string(logits.shape()), to_string(partials.shape()));
  visit_float(logits.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const auto merged = [&](std::int64_t row) {
      const auto part = [&](std::int64_t i) {
        return partials.as<A>() + i * partials.stride(0) + row * partials.stride(1);
      };
      RowSum<A> sum;
      A logit = 0;  // every part but the one that holds it has 0
      for (std::int64_t i = 0; i < parts; ++i) {
        sum.largest = std::max(sum.largest, part(i)[0]);
        logit += part(i)[2];
      }
      for (std::int64_t i = 0; i < parts; ++i)
        sum.total += part(i)[1] * std::exp(part(i)[0] - sum.largest);
      return std::pair(sum, logit);
    };
    const std::int32_t* target = targets.as<std::int32_t>();
    A* loss = losses.as<A>();
    pool_.run_ranges(rows, 4, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row)
        finish_row(loss[row], logits.as<T>() + row * logits.stride(0), columns, target[row],
                   first_column, gradient_scale, [&] { return merged(row); });
    });
  });
}

}  // namespace kintsugi
