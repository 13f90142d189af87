// Softmax, loss and gradient of one chunk of logits, in place; also for logits whose columns are
// sharded over ranks.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/vector_math.h"

namespace kintsugi {
namespace {

// The largest logit of a row and the sum of exponentials relative to it. They are kept apart: in
// largest + log(total) the logarithm would be lost beside a large logit.
template <class A>
struct RowSum {
  A largest = -std::numeric_limits<A>::infinity();
  A total = 0;  // the sum of exp(logit - largest)
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

// Overwrites the logits z with their gradient: scale * (weight * softmax - [target]).
// target_logit is relative to the largest logit; the target's column may be on another rank,
// outside [0, columns).
template <class T>
void row_gradient(T* z, std::int64_t columns, const RowSum<Accumulator<T>>& sum,
                  std::int64_t target, Accumulator<T> target_logit, Accumulator<T> scale,
                  Accumulator<T> weight) {
  using A = Accumulator<T>;
  const A factor = scale * weight / sum.total, largest = sum.largest;
#pragma omp simd
  for (std::int64_t i = 0; i < columns; ++i)
    z[i] = static_cast<T>(factor * vector_exp(static_cast<A>(z[i]) - largest));
  if (target >= 0 && target < columns)
    z[target] = static_cast<T>(factor * std::exp(target_logit) - scale);
}

// The outputs of one row.
template <class T>
struct RowOutputs {
  Accumulator<T>* loss;
  Accumulator<T>* squared_log_z;  // may be nullptr
  Accumulator<T>* smallest_loss;  // may be nullptr
  Accumulator<T> weight;          // of loss, log^2 Z and gradient
  T* z;                           // the logits, and their gradient
};

template <class T>
RowOutputs<T> outputs_of(std::int64_t row, const Tensor& losses, const Tensor& logits,
                         const CrossEntropyOptions& options) {
  using A = Accumulator<T>;
  const auto at = [row](const Tensor& x) { return x ? x.as<A>() + row : nullptr; };
  return {losses.as<A>() + row, at(options.squared_log_z), at(options.smallest_losses),
          options.weights ? options.weights.as<A>()[row] : A(1),
          logits.as<T>() + row * logits.stride(0)};
}

// Computes the outputs of a row. summary() returns the row's RowSum and the target's logit.
template <class T, class F>
void finish_row(const RowOutputs<T>& out, std::int64_t columns, std::int64_t target,
                std::int64_t first_column, const CrossEntropyOptions& options, const F& summary) {
  using A = Accumulator<T>;
  if (target < 0) {
    *out.loss = A(0);
    if (out.squared_log_z != nullptr) *out.squared_log_z = A(0);
    if (out.smallest_loss != nullptr) *out.smallest_loss = A(0);
    if (options.gradient_scale != 0) std::fill(out.z, out.z + columns, static_cast<T>(A(0)));
    return;
  }
  const auto [sum, logit] = summary();
  const A log_total = std::log(sum.total), log_z = sum.largest + log_total;
  *out.loss = out.weight * (log_total - (logit - sum.largest));
  if (out.squared_log_z != nullptr) *out.squared_log_z = out.weight * log_z * log_z;
  if (out.smallest_loss != nullptr) *out.smallest_loss = log_total;  // its logit is the largest
  if (options.gradient_scale != 0)
    row_gradient(out.z, columns, sum, target - first_column, logit - sum.largest,
                 out.weight * static_cast<A>(options.gradient_scale),
                 A(1) + static_cast<A>(2 * options.z_loss) * log_z);
}

}  // namespace

void CpuBackend::do_cross_entropy(Tensor losses, Tensor logits, Tensor targets,
                                  const CrossEntropyOptions& options) {
  const std::int64_t rows = logits.extent(0), vocabulary = logits.extent(1);
  visit_float(logits.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const std::int32_t* target = targets.as<std::int32_t>();
    pool_.run_ranges(rows, 4, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        const RowOutputs<T> out = outputs_of<T>(row, losses, logits, options);
        finish_row(out, vocabulary, target[row], 0, options, [&] {
          return std::pair(row_sum(out.z, vocabulary), static_cast<A>(out.z[target[row]]));
        });
      }
    });
  });
}

void CpuBackend::do_cross_entropy_partial(Tensor partial, Tensor logits, Tensor targets,
                                          std::int64_t first_column) {
  const std::int64_t rows = logits.extent(0), columns = logits.extent(1);
  visit_float(logits.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const std::int32_t* target = targets.as<std::int32_t>();
    pool_.run_ranges(rows, 4, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* z = logits.as<T>() + row * logits.stride(0);
        const RowSum<A> sum = row_sum(z, columns);
        const std::int64_t column = target[row] - first_column;
        const bool is_local = target[row] >= 0 && column >= 0 && column < columns;
        A* to = partial.as<A>() + row * partial.stride(0);
        to[0] = sum.largest;
        to[1] = sum.total;
        to[2] = is_local ? static_cast<A>(z[column]) : A(0);
      }
    });
  });
}

void CpuBackend::do_cross_entropy_merged(Tensor losses, Tensor logits, Tensor targets,
                                         Tensor partials, std::int64_t first_column,
                                         const CrossEntropyOptions& options) {
  const std::int64_t rows = logits.extent(0), columns = logits.extent(1),
                     shards = partials.extent(0);
  visit_float(logits.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const auto merged = [&](std::int64_t row) {
      const auto shard = [&](std::int64_t i) {
        return partials.as<A>() + i * partials.stride(0) + row * partials.stride(1);
      };
      RowSum<A> sum;
      A logit = 0;  // all shards but the one with the target's column have 0
      for (std::int64_t i = 0; i < shards; ++i) {
        sum.largest = std::max(sum.largest, shard(i)[0]);
        logit += shard(i)[2];
      }
      for (std::int64_t i = 0; i < shards; ++i)
        sum.total += shard(i)[1] * std::exp(shard(i)[0] - sum.largest);
      return std::pair(sum, logit);
    };
    const std::int32_t* target = targets.as<std::int32_t>();
    pool_.run_ranges(rows, 4, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row)
        finish_row(outputs_of<T>(row, losses, logits, options), columns, target[row], first_column,
                   options, [&] { return merged(row); });
    });
  });
}

}  // namespace kintsugi
