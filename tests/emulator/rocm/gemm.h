#pragma once

#include <cblas.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "tensor/dtype.h"

// Column-major matmuls on the processor, for the stand-ins of ROCm's libraries.
namespace kintsugi::stand_in {

struct Matrix {
  void* data = nullptr;
  DType type = DType::F32;
  std::int64_t ld = 0, stride = 0;  // elements from one column, and one matrix, to the next
};

enum class Epilogue : std::uint8_t { None, Gelu, GeluGradient };

// d = epilogue(alpha op(a) op(b) + beta c + bias of rows), `count` times.
struct Gemm {
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0, count = 1;
  double alpha = 1, beta = 0;
  Matrix a = {}, b = {}, c = {}, d = {};
  const void* bias = nullptr;  // (m), of the type of d
  Epilogue epilogue = Epilogue::None;
  Matrix aux = {};  // what a GELU is computed of: written by the GELU, read by its gradient
};

template <class R>
R load(const Matrix& x, std::int64_t index) {
  R value = 0;
  visit_float(x.type, [&]<class T>() {
    value = static_cast<R>(static_cast<Accumulator<T>>(static_cast<const T*>(x.data)[index]));
  });
  return value;
}

template <class R>
void store(const Matrix& x, std::int64_t index, R value) {
  visit_float(x.type, [&]<class T>() {
    static_cast<T*>(x.data)[index] = static_cast<T>(static_cast<Accumulator<T>>(value));
  });
}

template <class R>
std::vector<R> dense(const Matrix& x, std::int64_t rows, std::int64_t columns, std::int64_t first) {
  std::vector<R> values(static_cast<std::size_t>(rows * columns));
  for (std::int64_t j = 0; j < columns; ++j)
    for (std::int64_t i = 0; i < rows; ++i)
      values[static_cast<std::size_t>(j * rows + i)] = load<R>(x, first + j * x.ld + i);
  return values;
}

// GELU with the hyperbolic tangent, and its derivative.
inline double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}
inline double gelu_slope(double x) {
  const double inner = 0.7978845608028654 * (x + 0.044715 * x * x * x), t = std::tanh(inner);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

template <class R>
void multiply_one(const Gemm& g, std::int64_t index) {
  const std::int64_t a_rows = g.transpose_a ? g.k : g.m, a_columns = g.transpose_a ? g.m : g.k,
                     b_rows = g.transpose_b ? g.n : g.k, b_columns = g.transpose_b ? g.k : g.n;
  const auto a = dense<R>(g.a, a_rows, a_columns, index * g.a.stride),
             b = dense<R>(g.b, b_rows, b_columns, index * g.b.stride);
  std::vector<R> product(static_cast<std::size_t>(g.m * g.n));
  const auto op = [](bool transposed) { return transposed ? CblasTrans : CblasNoTrans; };
  const auto narrow = [](std::int64_t x) { return static_cast<int>(x); };
  const auto call = [&](auto gemm) {
    gemm(CblasColMajor, op(g.transpose_a), op(g.transpose_b), narrow(g.m), narrow(g.n), narrow(g.k),
         static_cast<R>(g.alpha), a.data(), narrow(a_rows), b.data(), narrow(b_rows), R(0),
         product.data(), narrow(g.m));
  };
  if constexpr (std::is_same_v<R, double>)
    call(cblas_dgemm);
  else
    call(cblas_sgemm);
  const Matrix bias{const_cast<void*>(g.bias), g.d.type, 0, 0};
  for (std::int64_t j = 0; j < g.n; ++j)
    for (std::int64_t i = 0; i < g.m; ++i) {
      R value = product[static_cast<std::size_t>(j * g.m + i)];
      if (g.beta != 0)
        value += static_cast<R>(g.beta) * load<R>(g.c, index * g.c.stride + j * g.c.ld + i);
      if (g.bias != nullptr) value += load<R>(bias, i);
      const std::int64_t at = j * g.aux.ld + i;
      if (g.epilogue == Epilogue::Gelu) {
        store<R>(g.aux, at, value);
        value = static_cast<R>(gelu(static_cast<double>(load<R>(g.aux, at))));
      } else if (g.epilogue == Epilogue::GeluGradient) {
        value *= static_cast<R>(gelu_slope(static_cast<double>(load<R>(g.aux, at))));
      }
      store<R>(g.d, index * g.d.stride + j * g.d.ld + i, value);
    }
}

inline void multiply(const Gemm& g) {
  for (std::int64_t i = 0; i < g.count; ++i)
    g.d.type == DType::F64 ? multiply_one<double>(g, i) : multiply_one<float>(g, i);
}

}  // namespace kintsugi::stand_in

extern "C" int kintsugi_launch_library_kernel(void* stream, const char* name,
                                              void (*function)(void*), void* data);

namespace kintsugi::stand_in {

// After what was queued on the stream.
inline int queue(void* stream, const Gemm& gemm) {
  return kintsugi_launch_library_kernel(
      stream, "Cijk_Ailk_Bljk_stand_in",
      [](void* data) {  // kept: a graph calls it again
        multiply(*static_cast<const Gemm*>(data));
      },
      new Gemm(gemm));
}

}  // namespace kintsugi::stand_in
