// What experts compute: matmuls of the rows of each expert, and the sums of their results per
// token.
#include <algorithm>
#include <cstring>
#include <limits>

#include "backend/cpu/blas.h"
#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/vector_math.h"

namespace kintsugi {
namespace {

constexpr std::int64_t kGathered = 512;  // rows that are copied and multiplied at a time
constexpr std::int64_t kFewRows = 1024;  // no more than so many, as in generation

std::byte* address(const Tensor& x, std::int64_t row) {
  return static_cast<std::byte*>(x.data()) +
         static_cast<std::size_t>(row * x.stride(0)) * size_of(x.dtype());
}

// Calls f(expert, first row, rows) for the rows of all experts, at most `most` at a time.
template <class F>
void for_each_block(const ExpertRows& rows, std::int64_t most, const F& f) {
  const std::int32_t* const offset = rows.offsets.as<std::int32_t>();
  for (std::int64_t e = 0; e + 1 < rows.offsets.elements(); ++e)
    for (std::int64_t row = offset[e]; row < offset[e + 1]; row += most)
      f(e, row, std::min<std::int64_t>(most, offset[e + 1] - row));
}

}  // namespace

std::int64_t CpuBackend::used_rows(const ExpertRows& rows) {
  return rows.offsets.as<std::int32_t>()[rows.offsets.elements() - 1];
}

// Rows [first, first + count) of x; those of the tokens, if x has a row per token.
Tensor CpuBackend::expert_rows(const Tensor& x, bool tokens, const ExpertRows& rows,
                               std::int64_t first, std::int64_t count, int operand) {
  if (!tokens) return x.rows(first, count);
  const std::size_t bytes = static_cast<std::size_t>(x.extent(1)) * size_of(x.dtype());
  std::vector<std::byte>& memory = gathered_[static_cast<std::size_t>(operand)];
  const std::size_t needed = static_cast<std::size_t>(std::max(count, kGathered)) * bytes;
  if (memory.size() < needed) memory.resize(needed);
  const Tensor copy(memory.data(), x.dtype(), {count, x.extent(1)});
  pool_.run_ranges(count, 8, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i)
      std::memcpy(address(copy, i),
                  address(x, rows.rows.as<std::int32_t>()[first + i] / rows.choices), bytes);
  });
  return copy;
}

void CpuBackend::do_gather_rows(Tensor y, Tensor x, const ExpertRows& rows) {
  const std::size_t bytes = static_cast<std::size_t>(x.extent(1)) * size_of(x.dtype());
  pool_.run_ranges(used_rows(rows), 8, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i)
      std::memcpy(address(y, i), address(x, rows.rows.as<std::int32_t>()[i] / rows.choices), bytes);
  });
}

void CpuBackend::do_grouped_matmul(Tensor c, Tensor a, Tensor b, const ExpertRows& rows,
                                   const GroupedOptions& options) {
  const auto multiply = [&](const Tensor& to, const Tensor& from, std::int64_t expert, bool alike) {
    do_matmul(to, from, b.select(0, expert),
              {.transpose_b = options.transpose_b,
               .residual = options.accumulate ? to : Tensor(),
               .scale = options.scale,
               .rows_alike = alike});
  };
  if (rows.rows.elements() > kFewRows)
    return for_each_block(
        rows, kGathered, [&](std::int64_t expert, std::int64_t first, std::int64_t count) {
          multiply(c.rows(first, count), expert_rows(a, options.tokens_a, rows, first, count, 0),
                   expert, false);
        });
  // A row's result does not depend on how many rows its expert has: matmuls have the same size.
  const std::int64_t tile = rows_computed_alike();
  const auto bytes = [](const Tensor& x) {  // of a row
    return static_cast<std::size_t>(x.extent(1)) * size_of(x.dtype());
  };
  for (std::size_t i = 0; i < 2; ++i)
    gathered_[i].resize(
        std::max(gathered_[i].size(), static_cast<std::size_t>(tile) * bytes(i == 0 ? a : c)));
  const Tensor in(gathered_[0].data(), a.dtype(), {tile, a.extent(1)}),
      out(gathered_[1].data(), c.dtype(), {tile, c.extent(1)});
  for_each_block(rows, tile, [&](std::int64_t expert, std::int64_t first, std::int64_t count) {
    fill(in, 0.0);
    if (options.accumulate) fill(out, 0.0);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t choice = rows.rows.as<std::int32_t>()[first + i];
      std::memcpy(address(in, i), address(a, options.tokens_a ? choice / rows.choices : first + i),
                  bytes(a));
      if (options.accumulate) std::memcpy(address(out, i), address(c, first + i), bytes(c));
    }
    multiply(out, in, expert, true);
    for (std::int64_t i = 0; i < count; ++i)
      std::memcpy(address(c, first + i), address(out, i), bytes(c));
  });
}

void CpuBackend::do_grouped_matmul_fp8(Tensor c, Quantized a, Quantized b, const ExpertRows& rows,
                                       const GroupedOptions& options) {
  const std::int64_t n = c.extent(1), tokens = a.rows();
  const Tensor scales(a.scales.data(), DType::F32, {tokens, 1});
  for_each_block(rows, kGathered, [&](std::int64_t expert, std::int64_t first, std::int64_t count) {
    const auto own = [&](const Tensor& x, int operand) {
      return expert_rows(x, options.tokens_a, rows, first, count, operand);
    };
    const Quantized left{own(a.values, 0), own(scales, 1).flatten_first()};
    do_matmul_fp8(c.rows(first, count), left, b.part(expert * n, n),
                  {.accumulate = options.accumulate});
  });
}

void CpuBackend::do_grouped_weight_gradient(Tensor dw, Tensor a, Tensor b, const ExpertRows& rows,
                                            const GroupedOptions& options) {
  const std::int32_t* const offset = rows.offsets.as<std::int32_t>();
  for (std::int64_t e = 0; e < dw.extent(0); ++e)
    if (offset[e] == offset[e + 1] && !options.accumulate) fill(dw.select(0, e), 0.0);
  // 16-bit sums are rounded once, of all rows.
  const std::int64_t most =
      size_of(dw.dtype()) == 2 ? std::numeric_limits<std::int32_t>::max() : kGathered;
  for_each_block(rows, most, [&](std::int64_t expert, std::int64_t first, std::int64_t count) {
    do_matmul(dw.select(0, expert), expert_rows(a, options.tokens_a, rows, first, count, 0),
              expert_rows(b, options.tokens_b, rows, first, count, 1),
              {.transpose_a = true, .accumulate = options.accumulate || first > offset[expert]});
  });
}

void CpuBackend::do_expert_swiglu_forward(Tensor out, Tensor gate_up, Tensor weights,
                                          const ExpertRows& rows) {
  const std::int64_t width = out.extent(1);
  visit_float(out.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    pool_.run_ranges(used_rows(rows), 8, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T *gate = gate_up.as<T>() + row * gate_up.stride(0), *up = gate + width;
        T* to = out.as<T>() + row * out.stride(0);
        const A weight = weights.as<A>()[rows.rows.as<std::int32_t>()[row]];
#pragma omp simd
        for (std::int64_t i = 0; i < width; ++i) {
          const A g = static_cast<A>(gate[i]);
          to[i] = static_cast<T>(weight * (g * sigmoid(g) * static_cast<A>(up[i])));
        }
      }
    });
  });
}

void CpuBackend::do_expert_swiglu_backward(Tensor dgate_up, Tensor dweights, Tensor dout,
                                           Tensor gate_up, Tensor weights, const ExpertRows& rows) {
  const std::int64_t width = dout.extent(1);
  visit_float(dout.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    pool_.run_ranges(used_rows(rows), 8, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T *gate = gate_up.as<T>() + row * gate_up.stride(0), *up = gate + width;
        const T* from = dout.as<T>() + row * dout.stride(0);
        T *dgate = dgate_up.as<T>() + row * dgate_up.stride(0), *dup = dgate + width;
        const std::int32_t choice = rows.rows.as<std::int32_t>()[row];
        const A weight = weights.as<A>()[choice];
        A dweight = 0;
#pragma omp simd reduction(+ : dweight)
        for (std::int64_t i = 0; i < width; ++i) {
          const A g = static_cast<A>(gate[i]), s = sigmoid(g), u = static_cast<A>(up[i]);
          const A d = static_cast<A>(from[i]), weighted = weight * d;
          dweight += d * g * s * u;
          dgate[i] = static_cast<T>(weighted * u * s * (A(1) + g * (A(1) - s)));
          dup[i] = static_cast<T>(weighted * g * s);
        }
        dweights.as<A>()[choice] = dweight;
      }
    });
  });
}

void CpuBackend::do_combine_rows(Tensor y, Tensor x, Tensor positions, Tensor residual) {
  const std::int64_t width = y.extent(1), k = positions.extent(1);
  visit_float(y.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    reserve_scratch<A>(width);
    pool_.run_ranges(y.extent(0), 8, [&](std::int64_t begin, std::int64_t end, int thread) {
      A* const sums = scratch<A>(thread);
      for (std::int64_t token = begin; token < end; ++token) {
        const T* const from = residual ? residual.as<T>() + token * residual.stride(0) : nullptr;
        for (std::int64_t i = 0; i < width; ++i) sums[i] = from ? static_cast<A>(from[i]) : A(0);
        for (std::int64_t slot = 0; slot < k; ++slot) {
          const std::int32_t row = positions.as<std::int32_t>()[token * k + slot];
          if (row < 0) continue;
          const T* const part = x.as<T>() + row * x.stride(0);
          for (std::int64_t i = 0; i < width; ++i) sums[i] += static_cast<A>(part[i]);
        }
        T* const to = y.as<T>() + token * y.stride(0);
        for (std::int64_t i = 0; i < width; ++i) to[i] = static_cast<T>(sums[i]);
      }
    });
  });
}

}  // namespace kintsugi
