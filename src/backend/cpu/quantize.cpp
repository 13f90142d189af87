// fp8: scales and values as the CUDA backend computes them, bit for bit, and matmuls of the values
// in accumulator precision.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "backend/cpu/blas.h"
#include "backend/cpu/cpu_backend_impl.h"
#include "backend/fp8_scale.h"

namespace kintsugi {
namespace {

std::uint32_t magnitude_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu;
}

// An element of a matrix that may be rounded to bf16 when it is read.
template <class T>
float number_at(const Tensor& x, std::int64_t i, std::int64_t j, bool through_bf16) {
  const auto value = static_cast<float>(x.as<T>()[i * x.stride(0) + j]);
  return through_bf16 ? static_cast<float>(bf16(value)) : value;
}

// Magnitudes are compared as bits, so that a NaN is larger than infinity.
struct MagnitudeBits {
  std::vector<std::uint32_t> rows, columns;

  MagnitudeBits(std::int64_t m, std::int64_t n)
      : rows(static_cast<std::size_t>(m), 0u), columns(static_cast<std::size_t>(n), 0u) {}
  template <class T>
  void find(const Tensor& x, bool through_bf16) {
    for (std::size_t i = 0; i < rows.size(); ++i)
      for (std::size_t j = 0; j < columns.size(); ++j) {
        const std::uint32_t bits = magnitude_bits(number_at<T>(
            x, static_cast<std::int64_t>(i), static_cast<std::int64_t>(j), through_bf16));
        rows[i] = std::max(rows[i], bits);
        columns[j] = std::max(columns[j], bits);
      }
  }
  void take(const Maxima& known) {
    std::copy_n(known.rows.as<std::int32_t>(), rows.size(), rows.begin());
    std::copy_n(known.columns.as<std::int32_t>(), columns.size(), columns.begin());
  }
  std::uint32_t all() const { return *std::max_element(rows.begin(), rows.end()); }
};

std::vector<Fp8Scale> scales_of(const std::vector<std::uint32_t>& maxima, bool power_of_two) {
  std::vector<Fp8Scale> scales;
  for (const std::uint32_t bits : maxima) scales.push_back(fp8_scale(bits, power_of_two));
  return scales;
}

void write_scales(const Quantized& q, const std::vector<Fp8Scale>& scales) {
  for (std::int64_t i = 0; i < q.scales.elements(); ++i)
    q.scales.as<float>()[i] = scales[static_cast<std::size_t>(i)].scale;
}

// Which NaN a processor's multiplication returns differs, and so would its sign: fp8 has a positive
// one.
f8 to_fp8(float value, float inverse) {
  const float product = value * inverse;
  return f8(std::isnan(product) ? std::numeric_limits<float>::quiet_NaN() : product);
}

// What the values became, for QuantizeOptions::statistics.
struct LostCounts {
  std::int64_t zero = 0, largest = 0;
  void add(float before, f8 after) {
    const float now = static_cast<float>(after);
    zero += before != 0 && now == 0 ? 1 : 0;
    largest += std::abs(now) == f8::kLargest ? 1 : 0;
  }
};

// Of matrix i of a stack of matrices (m, n).
Maxima part(const Maxima& maxima, std::int64_t i, std::int64_t m, std::int64_t n) {
  if (!maxima) return {};
  return {maxima.rows.rows(i * m, m), maxima.columns.rows(i * n, n)};
}

constexpr std::int64_t kBlockRows = 256, kBlockColumns = 256, kBlockDepth = 512;

// One tile of c: the values as R, block by block, and one rounding at the end.
template <class R, class C>
void matmul_tile_fp8(const Tensor& c, const Quantized& a, const Quantized& b,
                     const MatmulOptions& o, std::int64_t row, R* scratch) {
  R* wide_a = scratch;
  R* wide_b = wide_a + kBlockRows * kBlockDepth;
  R* wide_c = wide_b + kBlockColumns * kBlockDepth;
  const std::int64_t n = b.rows(), k = a.columns(), rows = std::min(kBlockRows, a.rows() - row);
  const auto widen = [&](R* out, const Quantized& q, std::int64_t first, std::int64_t count,
                         std::int64_t depth, std::int64_t d) {
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t j = 0; j < d; ++j)
        out[i * d + j] = static_cast<float>(q.values.as<f8>()[(first + i) * k + depth + j]);
  };
  const auto scale = [](const Quantized& q, std::int64_t i) {
    return static_cast<R>(q.scales.as<float>()[q.scales.elements() == 1 ? 0 : i]);
  };
  for (std::int64_t column = 0; column < n; column += kBlockColumns) {
    const std::int64_t columns = std::min(kBlockColumns, n - column);
    for (std::int64_t depth = 0; depth < k; depth += kBlockDepth) {
      const std::int64_t d = std::min(kBlockDepth, k - depth);
      widen(wide_a, a, row, rows, depth, d);
      widen(wide_b, b, column, columns, depth, d);
      gemm(GemmArguments<R>{.transpose_b = true,
                            .m = rows,
                            .n = columns,
                            .k = d,
                            .a = wide_a,
                            .lda = d,
                            .b = wide_b,
                            .ldb = d,
                            .beta = depth == 0 ? R(0) : R(1),
                            .c = wide_c,
                            .ldc = columns});
    }
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j) {
        C& to = c.as<C>()[(row + i) * c.stride(0) + column + j];
        R value = wide_c[i * columns + j] * scale(a, row + i) * scale(b, column + j);
        if (o.accumulate) value += static_cast<R>(to);
        if (o.bias) value += static_cast<R>(o.bias.as<C>()[column + j]);
        if (o.residual)
          value +=
              static_cast<R>(o.residual.as<C>()[(row + i) * o.residual.stride(0) + column + j]);
        to = static_cast<C>(value);
      }
  }
}

}  // namespace

void CpuBackend::do_quantize(Quantized rows, Quantized columns, Tensor x,
                             const QuantizeOptions& options) {
  if (x.elements() == 0) return;
  if (options.used.offsets) {
    QuantizeOptions of_used = options;
    of_used.used = {};
    const std::int64_t used = used_rows(options.used);
    return do_quantize(rows.part(0, used), {}, x.rows(0, used), of_used);
  }
  if (x.rank() == 3) {
    const std::int64_t m = x.extent(1), n = x.extent(2);
    for (std::int64_t i = 0; i < x.extent(0); ++i) {
      QuantizeOptions of_matrix = options;
      of_matrix.maxima = part(options.maxima, i, m, n);
      do_quantize(rows ? rows.part(i * m, m) : rows, columns ? columns.part(i * n, n) : columns,
                  x.select(0, i), of_matrix);
    }
    return;
  }
  const std::int64_t m = x.extent(0), n = x.extent(1);
  visit_float(x.dtype(), [&]<class T>() {
    MagnitudeBits maxima(m, n);
    if (options.maxima && !options.one_scale)
      maxima.take(options.maxima);
    else
      maxima.find<T>(x, options.through_bf16);
    if (options.one_scale) {
      std::fill(maxima.rows.begin(), maxima.rows.end(), maxima.all());
      std::fill(maxima.columns.begin(), maxima.columns.end(), maxima.rows.front());
    }
    const auto by_row = scales_of(maxima.rows, options.power_of_two),
               by_column = scales_of(maxima.columns, options.power_of_two);
    if (rows) write_scales(rows, by_row);
    if (columns) write_scales(columns, by_column);
    LostCounts lost;
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        const float value = number_at<T>(x, i, j, options.through_bf16);
        const f8 in_row = to_fp8(value, by_row[static_cast<std::size_t>(i)].inverse),
                 in_column = to_fp8(value, by_column[static_cast<std::size_t>(j)].inverse);
        if (rows) rows.values.as<f8>()[i * n + j] = in_row;
        if (columns) columns.values.as<f8>()[j * m + i] = in_column;
        lost.add(value, rows ? in_row : in_column);
      }
    if (!options.statistics) return;
    float* statistics = options.statistics.as<float>();
    statistics[0] = std::max(statistics[0], std::bit_cast<float>(maxima.all()));
    statistics[1] += static_cast<float>(lost.zero);
    statistics[2] += static_cast<float>(lost.largest);
    statistics[3] += static_cast<float>(x.elements());
  });
}

void CpuBackend::do_find_maxima(Maxima maxima, Tensor x, bool through_bf16) {
  if (x.rank() == 3) {
    for (std::int64_t i = 0; i < x.extent(0); ++i)
      do_find_maxima(part(maxima, i, x.extent(1), x.extent(2)), x.select(0, i), through_bf16);
    return;
  }
  MagnitudeBits found(x.extent(0), x.extent(1));
  visit_float(x.dtype(), [&]<class T>() { found.find<T>(x, through_bf16); });
  std::copy(found.rows.begin(), found.rows.end(), maxima.rows.as<std::int32_t>());
  std::copy(found.columns.begin(), found.columns.end(), maxima.columns.as<std::int32_t>());
}

void CpuBackend::do_matmul_fp8(Tensor c, Quantized a, Quantized b, const MatmulOptions& o) {
  const std::int64_t tiles = (a.rows() + kBlockRows - 1) / kBlockRows;
  visit_float(c.dtype(), [&]<class C>() {
    using R = Accumulator<C>;
    reserve_scratch<R>((kBlockRows + kBlockColumns) * kBlockDepth + kBlockRows * kBlockColumns);
    pool_.run(tiles, [&](std::int64_t task, int thread) {
      matmul_tile_fp8<R, C>(c, a, b, o, task * kBlockRows, scratch<R>(thread));
    });
  });
}

}  // namespace kintsugi
