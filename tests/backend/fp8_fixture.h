#pragma once

#include <array>
#include <bit>
#include <cstring>

#include "backend/operation_fixture.h"
#include "tensor/tensor.h"

// What the tests of fp8 compare with: searches for the nearest number, element by element.

namespace kintsugi {

using Codes = std::vector<std::uint8_t>;

// The finite numbers that are not negative, in order: code 8e + m is (8 + m) 2^(e - 10), or m 2^-9
// if e = 0.
inline const std::array<double, 127>& fp8_magnitudes() {
  static const std::array<double, 127> all = [] {
    std::array<double, 127> numbers{};
    for (int code = 0; code < 127; ++code)
      numbers[static_cast<std::size_t>(code)] =
          code < 8 ? std::ldexp(code, -9) : std::ldexp(8 + code % 8, code / 8 - 10);
    return numbers;
  }();
  return all;
}

// The code of the nearest number, of two the even code, and of all above the largest its own.
inline std::uint8_t nearest_code(double value) {
  if (std::isnan(value)) return std::signbit(value) ? 0xFF : 0x7F;
  const auto& numbers = fp8_magnitudes();
  const double magnitude = std::abs(value);
  const auto above = std::lower_bound(numbers.begin(), numbers.end(), magnitude);
  auto code = static_cast<std::size_t>(above - numbers.begin());
  if (code == numbers.size()) {
    --code;
  } else if (code > 0) {
    const double down = magnitude - numbers[code - 1], up = numbers[code] - magnitude;
    if (down < up || (down == up && code % 2 == 1)) --code;
  }
  return static_cast<std::uint8_t>(code | (std::signbit(value) ? 0x80u : 0u));
}

inline double number_of(std::uint8_t code) {
  const std::uint8_t magnitude = code & 0x7Fu;
  const double value =
      magnitude == 0x7F ? std::nan("") : fp8_magnitudes()[static_cast<std::size_t>(magnitude)];
  return (code & 0x80u) != 0 ? -value : value;
}

// ---- quantize, element by element
struct ReferenceScale {
  float scale = 1, inverse = 1;
};

inline ReferenceScale reference_scale(const std::vector<float>& numbers, bool power_of_two) {
  double largest = 0;
  for (const float x : numbers) {
    if (!std::isfinite(x)) return {NAN, NAN};
    largest = std::max(largest, static_cast<double>(std::abs(x)));
  }
  if (largest == 0) return {};
  // A quotient or product of floats, rounded to double and then to float, is rounded correctly.
  double scale = std::max(static_cast<double>(static_cast<float>(largest / 448)), 0x1p-126);
  if (power_of_two) {
    int exponent = 0;
    if (std::frexp(scale, &exponent) > 0.5) scale = std::ldexp(1.0, exponent);
  }
  return {static_cast<float>(scale), static_cast<float>(1 / scale)};
}

struct Fp8Matrix {
  Codes values;
  std::vector<float> scales;
};

// x (rows, columns) row by row.
inline Fp8Matrix reference_quantize(const std::vector<float>& x, std::size_t columns,
                                    const QuantizeOptions& o) {
  Fp8Matrix result;
  for (std::size_t begin = 0; begin < x.size(); begin += columns) {
    const std::vector<float> row(x.begin() + static_cast<std::ptrdiff_t>(begin),
                                 x.begin() + static_cast<std::ptrdiff_t>(begin + columns));
    const ReferenceScale scale =
        begin > 0 && o.one_scale
            ? ReferenceScale{result.scales[0], static_cast<float>(1.0 / result.scales[0])}
            : reference_scale(o.one_scale ? x : row, o.power_of_two);
    if (begin == 0 || !o.one_scale) result.scales.push_back(scale.scale);
    for (const float value : row) {
      const auto product =
          static_cast<float>(static_cast<double>(value) * static_cast<double>(scale.inverse));
      result.values.push_back(std::isnan(product) ? 0x7F
                                                  : nearest_code(static_cast<double>(product)));
    }
  }
  return result;
}

inline std::vector<float> transposed(const std::vector<float>& x, std::size_t columns) {
  const std::size_t rows = x.size() / columns;
  std::vector<float> result(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) result[i % columns * rows + i / columns] = x[i];
  return result;
}

class Fp8Operands : public OperationTest {
 protected:
  struct Operand {
    Quantized tensor;
    Values numbers;  // (rows, k)
  };
  // Random codes, and scales between 2^-10 and 2^-2 that differ from row to row.
  Operand operand(std::int64_t rows, std::int64_t k, bool one_scale = false) {
    Operand result{quantized(rows, k, one_scale), normal(rows * k, 16)};
    const Ids exponents = integers(rows, -9, -3);
    const Values mantissas = normal(rows, 0.1, 1.0);
    Codes codes;
    std::vector<float> scales;
    for (std::int64_t i = 0; i < result.tensor.scales.elements(); ++i)
      scales.push_back(static_cast<float>(std::ldexp(mantissas[static_cast<std::size_t>(i)],
                                                     exponents[static_cast<std::size_t>(i)])));
    for (std::size_t i = 0; i < result.numbers.size(); ++i) {
      codes.push_back(nearest_code(result.numbers[i]));
      const std::size_t row = i / static_cast<std::size_t>(k);
      result.numbers[i] =
          number_of(codes[i]) * static_cast<double>(scales[scales.size() == 1 ? 0 : row]);
    }
    backend().upload(result.tensor.values, codes.data());
    backend().upload(result.tensor.scales, scales.data());
    return result;
  }
  // How exact sums of k products are (Bound). The CPU accumulates in fp32, and fp64 is exact
  // everywhere. The tensor cores of Hopper keep 14 bits of the sum of one instruction; without fast
  // accumulation the sums of a few instructions are added in fp32, so that their errors average
  // out. The bound is relative to the sum of the magnitudes: 2^-11, more for long sums with fast
  // accumulation, less for long sums without it. (An H200 was seen to lose up to 2^-12 of sums of
  // 48 numbers, and of 4096 with fast accumulation.)
  double rounds_of(std::int64_t terms, bool fast) {
    const auto k = static_cast<double>(terms);
    const double exact = 4 + std::sqrt(k);
    if (type() == DType::F64 || GetParam().backend.name == "cpu") return exact;
    const double hopper =
        fast ? std::max(1.0, std::sqrt(k) / 64) : 1 / std::sqrt(std::max(1.0, k / 512));
    return exact + 0x1p-11 * hopper / unit_roundoff(DType::F32);
  }

  Quantized quantized(std::int64_t rows, std::int64_t columns, bool one_scale) {
    return {out(DType::F8, {rows, columns}), out(DType::F32, {one_scale ? 1 : rows})};
  }
  template <class T>
  std::vector<T> download(const Tensor& x) {
    std::vector<T> values(static_cast<std::size_t>(x.elements()));
    backend().download(values.data(), x);
    return values;
  }
  void expect_equal(const std::string& what, const Quantized& actual, const Fp8Matrix& expected) {
    const Codes values = download<std::uint8_t>(actual.values);
    const auto scales = download<float>(actual.scales);
    ASSERT_EQ(scales.size(), expected.scales.size()) << what;
    for (std::size_t i = 0; i < scales.size(); ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(scales[i]),
                std::bit_cast<std::uint32_t>(expected.scales[i]))
          << what << ", scale " << i << " is " << scales[i] << ", expected " << expected.scales[i];
    ASSERT_EQ(values.size(), expected.values.size()) << what;
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(int{values[i]}, int{expected.values[i]})
          << what << ", row " << i / static_cast<std::size_t>(actual.columns()) << " column "
          << i % static_cast<std::size_t>(actual.columns());
  }
};

class Fp8Test : public Fp8Operands {
 protected:
  void SetUp() override {
    const std::string why = backend().why_no_fp8(true);
    if (!why.empty()) GTEST_SKIP() << why;
  }

  // The numbers as a tensor of this test's type stores them, and as quantize() reads them.
  std::vector<float> stored(const Values& values) const {
    const Values exact = rounded(values, type());
    return {exact.begin(), exact.end()};
  }
  // Of a matrix; their memory is one tensor, or two.
  Maxima maxima(std::int64_t rows, std::int64_t columns, bool together = true) {
    if (!together) return {out(DType::I32, {rows}), out(DType::I32, {columns})};
    const Tensor all = out(DType::I32, {rows + columns});
    return {all.rows(0, rows), all.rows(rows, columns)};
  }
  Maxima found_maxima(const Tensor& x, bool together = true) {
    const Maxima found = maxima(x.extent(0), x.extent(1), together);
    backend().find_maxima(found, x);
    return found;
  }
  // A NaN is larger than all others; which one it is may differ.
  void expect_maxima(const Maxima& actual, const std::vector<float>& numbers) {
    const auto columns = static_cast<std::size_t>(actual.columns.elements());
    expect_largest("row", actual.rows, numbers, columns);
    expect_largest("column", actual.columns, transposed(numbers, columns),
                   numbers.size() / columns);
  }
  void expect_largest(const std::string& what, const Tensor& actual,
                      const std::vector<float>& numbers, std::size_t width) {
    const auto bits = download<std::int32_t>(actual);
    ASSERT_EQ(bits.size() * width, numbers.size()) << what;
    for (std::size_t i = 0; i < bits.size(); ++i) {
      float expected = 0;
      for (std::size_t j = i * width; j < (i + 1) * width; ++j)
        if (std::isnan(numbers[j]) || std::abs(numbers[j]) > expected)
          expected = std::abs(numbers[j]);
      const auto found = std::bit_cast<float>(bits[i]);
      if (std::isnan(expected))
        ASSERT_TRUE(bits[i] > 0 && std::isnan(found)) << what << " " << i << " is " << found;
      else
        ASSERT_EQ(bits[i], std::bit_cast<std::int32_t>(expected))
            << what << " " << i << " is " << found << ", expected " << expected;
    }
  }

  // Checks both orientations, together and alone.
  void check(const Tensor& x, const std::vector<float>& numbers, const QuantizeOptions& o) {
    const std::int64_t m = x.extent(0), n = x.extent(1);
    const Fp8Matrix in_rows = reference_quantize(numbers, static_cast<std::size_t>(n), o),
                    in_columns =
                        reference_quantize(transposed(numbers, static_cast<std::size_t>(n)),
                                           static_cast<std::size_t>(m), o);
    const Quantized rows = quantized(m, n, o.one_scale), columns = quantized(n, m, o.one_scale),
                    rows_alone = quantized(m, n, o.one_scale),
                    columns_alone = quantized(n, m, o.one_scale);
    backend().quantize(rows, columns, x, o);
    backend().quantize(rows_alone, {}, x, o);
    backend().quantize({}, columns_alone, x, o);
    expect_equal("rows", rows, in_rows);
    expect_equal("columns", columns, in_columns);
    expect_equal("rows alone", rows_alone, in_rows);
    expect_equal("columns alone", columns_alone, in_columns);
  }
  void check_options(const Tensor& x, const std::vector<float>& numbers) {
    for (const bool one_scale : {false, true})
      for (const bool power_of_two : {false, true}) {
        SCOPED_TRACE(fmt::format("{} one scale {} power of two {}", to_string(x.shape()), one_scale,
                                 power_of_two));
        check(x, numbers, {.power_of_two = power_of_two, .one_scale = one_scale});
      }
  }
};

}  // namespace kintsugi
