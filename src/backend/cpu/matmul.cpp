// Matmuls: the result is split into tiles, with one single-threaded BLAS call per tile. 16-bit
// operands are converted to fp32 block by block, so that the fp32 copies take
// 1.25 MiB per thread.
#include <algorithm>

#include "backend/cpu/blas.h"
#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/rows.h"

namespace kintsugi {
namespace {

struct Tiling {
  std::int64_t rows, columns;  // of one tile of c
  std::int64_t row_tiles, column_tiles;
};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// About 256 rows per tile: the tile of c stays in cache between its first write and the GEMM, and
// packing the shared operand once per tile costs less than one percent. With few rows (decoding)
// the columns are split instead.
Tiling tile(std::int64_t m, std::int64_t n, int threads, std::int64_t most_rows) {
  Tiling t{};
  t.rows = std::clamp<std::int64_t>(ceil_div(ceil_div(m, threads), 8) * 8, 8, 256);
  t.rows = std::min(t.rows, most_rows);
  t.row_tiles = ceil_div(m, t.rows);
  t.column_tiles = t.row_tiles >= threads
                       ? 1
                       : std::min<std::int64_t>(ceil_div(threads, t.row_tiles), ceil_div(n, 16));
  t.columns = ceil_div(ceil_div(n, t.column_tiles), 8) * 8;
  t.column_tiles = ceil_div(n, t.columns);
  return t;
}

struct Operand {
  const Tensor& x;
  bool transpose;
  std::int64_t ld() const { return x.stride(0); }
  // Offset of element (row, column) of op(x).
  std::int64_t at(std::int64_t row, std::int64_t column) const {
    return transpose ? column * ld() + row : row * ld() + column;
  }
};

template <class T, class R>
void widen(R* out, std::int64_t ld_out, const T* in, std::int64_t ld_in, std::int64_t rows,
           std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      out[i * ld_out + j] = static_cast<R>(in[i * ld_in + j]);
}

// Initializes a tile of c with the bias and the residual, to which the GEMM adds.
template <class T, class R>
void start_tile(R* out, std::int64_t ld_out, std::int64_t row, std::int64_t rows,
                std::int64_t column, std::int64_t columns, const MatmulOptions& o) {
  const T* bias = o.bias ? o.bias.as<T>() + column : nullptr;
  const R by = static_cast<R>(o.residual_scale);
  for (std::int64_t i = 0; i < rows; ++i) {
    R* to = out + i * ld_out;
    const T* residual =
        o.residual ? o.residual.as<T>() + (row + i) * o.residual.stride(0) + column : nullptr;
    for (std::int64_t j = 0; j < columns; ++j)
      to[j] = (bias ? static_cast<R>(bias[j]) : R(0)) +
              (residual ? by * static_cast<R>(residual[j]) : R(0));
  }
}

// fp32 and fp64: the GEMM reads the operands directly.
template <class R>
void matmul_tile(const Tensor& c, const Operand& a, const Operand& b, const MatmulOptions& o,
                 std::int64_t k, std::int64_t row, std::int64_t rows, std::int64_t column,
                 std::int64_t columns) {
  R* out = c.as<R>() + row * c.stride(0) + column;
  const bool in_place = o.residual && o.residual.data() == c.data();
  const bool started = (o.bias || o.residual) && !(in_place && !o.bias);
  if (started) start_tile<R, R>(out, c.stride(0), row, rows, column, columns, o);
  gemm(GemmArguments<R>{.transpose_a = a.transpose,
                        .transpose_b = b.transpose,
                        .m = rows,
                        .n = columns,
                        .k = k,
                        .alpha = static_cast<R>(o.scale),
                        .a = a.x.as<R>() + a.at(row, 0),
                        .lda = a.ld(),
                        .b = b.x.as<R>() + b.at(0, column),
                        .ldb = b.ld(),
                        .beta = in_place && !started      ? static_cast<R>(o.residual_scale)
                                : started || o.accumulate ? R(1)
                                                          : R(0),
                        .c = out,
                        .ldc = c.stride(0)});
}

constexpr std::int64_t kWideColumns = 256;
constexpr std::int64_t kWideDepth = 512;
constexpr std::int64_t kWideScratch =
    256 * kWideDepth + kWideDepth * kWideColumns + 256 * kWideColumns;

// 16-bit operands: converts a block of each to fp32, multiplies, and rounds once into c.
template <class T, class C>
void matmul_tile_wide(const Tensor& c, const Operand& a, const Operand& b, const MatmulOptions& o,
                      std::int64_t k, std::int64_t row, std::int64_t rows, std::int64_t first,
                      std::int64_t columns, float* scratch) {
  float* wide_a = scratch;
  float* wide_b = wide_a + 256 * kWideDepth;
  float* wide_c = wide_b + kWideDepth * kWideColumns;
  for (std::int64_t column = first; column < first + columns; column += kWideColumns) {
    const std::int64_t n = std::min(kWideColumns, first + columns - column);
    start_tile<T>(wide_c, n, row, rows, column, n, o);
    for (std::int64_t depth = 0; depth < k; depth += kWideDepth) {
      const std::int64_t d = std::min(kWideDepth, k - depth);
      const std::int64_t lda = a.transpose ? rows : d, ldb = b.transpose ? d : n;
      widen(wide_a, lda, a.x.as<T>() + a.at(row, depth), a.ld(), a.transpose ? d : rows, lda);
      widen(wide_b, ldb, b.x.as<T>() + b.at(depth, column), b.ld(), b.transpose ? n : d, ldb);
      gemm(GemmArguments<float>{.transpose_a = a.transpose,
                                .transpose_b = b.transpose,
                                .m = rows,
                                .n = n,
                                .k = d,
                                .alpha = static_cast<float>(o.scale),
                                .a = wide_a,
                                .lda = lda,
                                .b = wide_b,
                                .ldb = ldb,
                                .beta = 1.0f,
                                .c = wide_c,
                                .ldc = n});
    }
    C* out = c.as<C>() + row * c.stride(0) + column;
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        C& to = out[i * c.stride(0) + j];
        const float value = wide_c[i * n + j];
        to = static_cast<C>(o.accumulate ? static_cast<float>(to) + value : value);
      }
  }
}

}  // namespace

void CpuBackend::do_matmul(Tensor c, Tensor a, Tensor b, const MatmulOptions& o) {
  if (c.rank() == 3) return matmul_batch(c, a, b, o);
  const Operand left{a, o.transpose_a}, right{b, o.transpose_b};
  const std::int64_t m = c.extent(0), n = c.extent(1), k = a.extent(o.transpose_a ? 0 : 1);
  if (size_of(a.dtype()) == 2) reserve_scratch<float>(kWideScratch);
  const Tiling t = tile(m, n, pool_.threads(), o.rows_alike ? rows_computed_alike() : 256);
  pool_.run(t.row_tiles * t.column_tiles, [&](std::int64_t task, int thread) {
    const std::int64_t row = task / t.column_tiles * t.rows,
                       column = task % t.column_tiles * t.columns;
    const std::int64_t rows = std::min(t.rows, m - row), columns = std::min(t.columns, n - column);
    visit_float(a.dtype(), [&]<class T>() {
      if constexpr (std::is_same_v<T, Accumulator<T>>) {
        matmul_tile<T>(c, left, right, o, k, row, rows, column, columns);
      } else {
        float* wide = scratch<float>(thread);
        if (c.dtype() == DType::F32)
          matmul_tile_wide<T, float>(c, left, right, o, k, row, rows, column, columns, wide);
        else
          matmul_tile_wide<T, T>(c, left, right, o, k, row, rows, column, columns, wide);
      }
    });
  });
  if (o.swiglu) do_swiglu_forward(o.swiglu, c);
  if (o.gelu) do_gelu_forward(o.gelu, c);
  if (o.gelu_input) do_gelu_backward(c, c, o.gelu_input);
}

void CpuBackend::matmul_batch(Tensor c, Tensor a, Tensor b, const MatmulOptions& o) {
  MatmulOptions one = o;
  for (std::int64_t i = 0; i < c.extent(0); ++i) {
    if (o.residual) one.residual = o.residual.select(0, i);
    do_matmul(c.select(0, i), a.select(0, i), b.select(0, i), one);
  }
}

void CpuBackend::do_bias_backward(Tensor dbias, Tensor dy) {
  const std::int64_t width = dy.extent(1);
  visit_float(dy.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    A* const target = dbias.as<A>();
    const T* in = dy.as<T>();
    reduce_columns<A>(dy.extent(0), width, 1, &target,
                      [&](std::int64_t begin, std::int64_t end, A* sums) {
                        for (std::int64_t row = begin; row < end; ++row) {
                          const T* values = in + row * dy.stride(0);
                          for (std::int64_t i = 0; i < width; ++i)
                            sums[i] += static_cast<A>(values[i]);
                        }
                      });
  });
}

}  // namespace kintsugi
