// fp8: the type, quantize(), maxima and matmul_fp8(), against searches for the nearest number and
// sums in double.
#include <array>
#include <bit>
#include <cstring>

#include "backend/operation_fixture.h"
#include "tensor/quantized.h"

namespace kintsugi {
namespace {

using Codes = std::vector<std::uint8_t>;

// The finite numbers that are not negative, in order: code 8e + m is (8 + m) 2^(e - 10), or m 2^-9
// if e = 0.
const std::array<double, 127>& fp8_magnitudes() {
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
std::uint8_t nearest_code(double value) {
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

double number_of(std::uint8_t code) {
  const std::uint8_t magnitude = code & 0x7Fu;
  const double value =
      magnitude == 0x7F ? std::nan("") : fp8_magnitudes()[static_cast<std::size_t>(magnitude)];
  return (code & 0x80u) != 0 ? -value : value;
}

double bf16_number(unsigned bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

TEST(Fp8Type, EveryCode) {
  for (unsigned code = 0; code < 256; ++code) {
    f8 x;
    x.bits = static_cast<std::uint8_t>(code);
    const auto value = static_cast<double>(static_cast<float>(x)), expected = number_of(x.bits);
    EXPECT_EQ(std::signbit(value), std::signbit(expected)) << code;
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(value, expected) << code;
    }
    EXPECT_EQ(f8(static_cast<float>(x)).bits, x.bits) << code;
  }
}

TEST(Fp8Type, RoundsToTheNearest) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const double value = bf16_number(bits);
    ASSERT_EQ(f8(static_cast<float>(value)).bits, nearest_code(value)) << value;
  }
  // The numbers between two codes, and their neighbours in fp32.
  const auto& numbers = fp8_magnitudes();
  for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
    const auto middle = static_cast<float>((numbers[i] + numbers[i + 1]) / 2);
    for (const float value : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, 1e9f)})
      for (const float signed_value : {value, -value})
        ASSERT_EQ(f8(signed_value).bits, nearest_code(static_cast<double>(signed_value)))
            << signed_value;
  }
}

// ---- quantize, element by element
struct ReferenceScale {
  float scale = 1, inverse = 1;
};

ReferenceScale reference_scale(const std::vector<float>& numbers, bool power_of_two) {
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
Fp8Matrix reference_quantize(const std::vector<float>& x, std::size_t columns,
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

std::vector<float> transposed(const std::vector<float>& x, std::size_t columns) {
  const std::size_t rows = x.size() / columns;
  std::vector<float> result(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) result[i % columns * rows + i / columns] = x[i];
  return result;
}

class Fp8Test : public OperationTest {
 protected:
  void SetUp() override {
    const std::string why = backend().why_no_fp8(true);
    if (!why.empty()) GTEST_SKIP() << why;
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
KINTSUGI_ON_EACH_BACKEND(Fp8Test);

constexpr std::int64_t kEveryWidth = 256;

// All bf16 numbers in rows of 256, those that are not finite as 0, and 16 rows more, some of them
// with one number that is not finite.
Values every_bf16_number(bool finite) {
  Values x;
  for (unsigned bits = 0; bits < 0x10000; ++bits)
    x.push_back(std::isfinite(bf16_number(bits)) ? bf16_number(bits) : 0.0);
  const auto row = [&](double value) { x.insert(x.end(), kEveryWidth, value); };
  row(0);
  row(-0.0);
  row(0x1p-133);  // the smallest subnormal
  row(-0x1p-126);
  row(3);
  row(448);
  for (unsigned i = 0; i < kEveryWidth; ++i) x.push_back(bf16_number(i % 128));  // subnormal
  for (unsigned i = 0; i < kEveryWidth; ++i) x.push_back(bf16_number(0x3C00 + 3 * i));
  const double others[] = {INFINITY, -INFINITY, std::nan(""), -std::nan("")};
  for (std::size_t i = 0; i < 8; ++i) {
    row(static_cast<double>(i) - 3);
    if (!finite) x[x.size() - 3 - 2 * i] = others[i % 4];
  }
  return x;
}

TEST_P(Fp8Test, EveryNumberIsTheNearest) {
  for (const bool finite : {true, false}) {
    SCOPED_TRACE(finite ? "finite" : "not finite");
    const std::vector<float> x = stored(every_bf16_number(finite)),
                             turned = transposed(x, kEveryWidth);
    const auto rows = static_cast<std::int64_t>(x.size()) / kEveryWidth;
    check_options(in(Values(x.begin(), x.end()), type(), {rows, kEveryWidth}), x);
    finish();
    check_options(in(Values(turned.begin(), turned.end()), type(), {kEveryWidth, rows}), turned);
    finish();
  }
}

// Sizes of whole tiles, of parts of them, and of single elements; rows that registers hold or not.
TEST_P(Fp8Test, EverySize) {
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                                      {3, 5},
                                      {16, 8},
                                      {17, 40},
                                      {32, 33},
                                      {128, 64},
                                      {144, 72},
                                      {272, 520},
                                      {1000, 24},
                                      {3, 20480},
                                      {2, 41000}}) {
    const Values values = normal(rows * columns);
    check_options(in(values, type(), {rows, columns}), stored(values));
    finish();
  }
}

TEST_P(Fp8Test, StridedRows) {
  for (const auto& [skip, rest] : {std::pair<std::int64_t, std::int64_t>{8, 16}, {3, 2}}) {
    SCOPED_TRACE(fmt::format("skip {} rest {}", skip, rest));
    const Values values = normal(144 * 200);
    const Tensor x = inside(type(), 144, 200, skip, rest);
    write(x, values);
    check_options(x, stored(values));
    finish();
  }
}

// ---- maxima
constexpr std::pair<std::int64_t, std::int64_t> kMaximaSizes[] = {
    {1, 1},    {3, 5},     {16, 8},    {33, 40},   {65, 33},   {128, 256},
    {144, 72}, {130, 264}, {300, 520}, {1000, 24}, {3, 20480}, {257, 1031}};

// Some numbers that are not finite, in few rows and columns.
Values with_infinities(Values x) {
  const double others[] = {INFINITY, -INFINITY, std::nan(""), -std::nan("")};
  for (std::size_t i = 0; i < 4; ++i) x[x.size() * (2 * i + 1) / 8] = others[i];
  return x;
}

TEST_P(Fp8Test, FindsMaxima) {
  for (const auto& [rows, columns] : kMaximaSizes)
    for (const bool finite : {true, false}) {
      SCOPED_TRACE(fmt::format("{} x {} finite {}", rows, columns, finite));
      const Values values =
          finite ? normal(rows * columns) : with_infinities(normal(rows * columns));
      expect_maxima(found_maxima(in(values, type(), {rows, columns}), finite), stored(values));
      finish();
    }
}

TEST_P(Fp8Test, FindsMaximaOfStridedRows) {
  for (const auto& [skip, rest] : {std::pair<std::int64_t, std::int64_t>{8, 16}, {3, 2}}) {
    SCOPED_TRACE(fmt::format("skip {} rest {}", skip, rest));
    const Values values = normal(144 * 200);
    const Tensor x = inside(type(), 144, 200, skip, rest);
    write(x, values);
    expect_maxima(found_maxima(x), stored(values));
    finish();
  }
}

TEST_P(Fp8Test, QuantizesWithGivenMaxima) {
  for (const auto& [rows, columns] : kMaximaSizes)
    for (const bool one_scale : {false, true})
      for (const bool power_of_two : {false, true}) {
        SCOPED_TRACE(fmt::format("{} x {} one scale {} power of two {}", rows, columns, one_scale,
                                 power_of_two));
        const Values values = normal(rows * columns);
        const Tensor x = in(values, type(), {rows, columns});
        check(x, stored(values),
              {.power_of_two = power_of_two, .one_scale = one_scale, .maxima = found_maxima(x)});
        finish();
      }
}

TEST_P(Fp8Test, QuantizesStridedRowsWithGivenMaxima) {
  for (const auto& [skip, rest] : {std::pair<std::int64_t, std::int64_t>{8, 16}, {3, 2}}) {
    SCOPED_TRACE(fmt::format("skip {} rest {}", skip, rest));
    const Values values = with_infinities(normal(144 * 200));
    const Tensor x = inside(type(), 144, 200, skip, rest);
    write(x, values);
    check(x, stored(values), {.maxima = found_maxima(x)});
    finish();
  }
}

// The scales are those of the given maxima, even if x has others.
TEST_P(Fp8Test, GivenMaximaAreUsed) {
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{144, 200}, {17, 13}}) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
    const Values values = activations(rows * columns);
    Values larger = values;
    for (double& value : larger) value *= 4;
    const QuantizeOptions o{.maxima = found_maxima(in(larger, type(), {rows, columns}))};
    const Tensor x = in(values, type(), {rows, columns});
    const Quantized in_rows = quantized(rows, columns, false),
                    in_columns = quantized(columns, rows, false),
                    rows_alone = quantized(rows, columns, false);
    backend().quantize(in_rows, in_columns, x, o);
    backend().quantize(rows_alone, {}, x, o);
    const std::vector<float> numbers = stored(larger);
    const auto n = static_cast<std::size_t>(columns), m = static_cast<std::size_t>(rows);
    const auto by_row = reference_quantize(numbers, n, o).scales,
               by_column = reference_quantize(transposed(numbers, n), m, o).scales;
    EXPECT_EQ(download<float>(in_rows.scales), by_row);
    EXPECT_EQ(download<float>(rows_alone.scales), by_row);
    EXPECT_EQ(download<float>(in_columns.scales), by_column);
    finish();
  }
}

// ---- SwiGLU: the same result with maxima as without
class Fp8SwigluTest : public Fp8Test {
 protected:
  void expect_same(const std::string& what, const Values& actual, const Values& expected) {
    ASSERT_EQ(actual.size(), expected.size()) << what;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
      ASSERT_EQ(actual[i], expected[i]) << what << " element " << i;
    }
  }
  static std::vector<float> floats(const Values& values) { return {values.begin(), values.end()}; }
  struct Swiglu {
    Tensor gate_up, dout;                             // (rows, 2 width), (rows, width)
    Tensor out, out_alone, dgate_up, dgate_up_alone;  // with maxima, and without
  };
  void check_swiglu(const Swiglu& t) {
    const std::int64_t rows = t.dout.extent(0), width = t.dout.extent(1);
    const Maxima of_out = maxima(rows, width), of_gradient = maxima(rows, 2 * width, false);
    backend().swiglu_forward(t.out_alone, t.gate_up);
    backend().swiglu_forward(t.out, t.gate_up, of_out);
    expect_same("out", read(t.out), read(t.out_alone));
    expect_maxima(of_out, floats(read(t.out)));
    backend().swiglu_backward(t.dgate_up_alone, t.dout, t.gate_up);
    backend().swiglu_backward(t.dgate_up, t.dout, t.gate_up, of_gradient);
    expect_same("dgate_up", read(t.dgate_up), read(t.dgate_up_alone));
    expect_maxima(of_gradient, floats(read(t.dgate_up)));
    // The gradient may overwrite gate_up.
    const Maxima in_place = maxima(rows, 2 * width);
    backend().swiglu_backward(allow(t.gate_up), t.dout, t.gate_up, in_place);
    expect_same("dgate_up in place", read(t.gate_up), read(t.dgate_up));
    expect_maxima(in_place, floats(read(t.gate_up)));
    finish();
  }
};
KINTSUGI_ON_EACH_BACKEND(Fp8SwigluTest);

TEST_P(Fp8SwigluTest, EverySize) {
  for (const auto& [rows, width] : kMaximaSizes)
    for (const bool finite : {true, false}) {
      SCOPED_TRACE(fmt::format("{} x {} finite {}", rows, width, finite));
      Values gate_up = normal(rows * 2 * width, 2.0);
      if (!finite) gate_up = with_infinities(gate_up);
      check_swiglu({.gate_up = in(gate_up, type(), {rows, 2 * width}),
                    .dout = in(normal(rows * width), type(), {rows, width}),
                    .out = out(type(), {rows, width}),
                    .out_alone = out(type(), {rows, width}),
                    .dgate_up = out(type(), {rows, 2 * width}),
                    .dgate_up_alone = out(type(), {rows, 2 * width})});
    }
}

TEST_P(Fp8SwigluTest, StridedRows) {
  const std::int64_t rows = 70, width = 136;
  for (const auto& [skip, rest] : {std::pair<std::int64_t, std::int64_t>{8, 16}, {3, 2}}) {
    SCOPED_TRACE(fmt::format("skip {} rest {}", skip, rest));
    const auto strided = [&, skip = skip, rest = rest](std::int64_t columns) {
      return inside(type(), rows, columns, skip, rest);
    };
    const Tensor gate_up = strided(2 * width), dout = strided(width);
    write(gate_up, normal(rows * 2 * width, 2.0));
    write(dout, normal(rows * width));
    check_swiglu({.gate_up = gate_up,
                  .dout = dout,
                  .out = allow(strided(width)),
                  .out_alone = allow(strided(width)),
                  .dgate_up = allow(strided(2 * width)),
                  .dgate_up_alone = allow(strided(2 * width))});
  }
}

// ---- statistics of quantize
TEST_P(Fp8Test, Statistics) {
  for (const auto& [rows, columns] :
       {std::pair<std::int64_t, std::int64_t>{144, 200}, {17, 13}, {256, 64}})
    for (const auto& [one_scale, known] :
         {std::pair<bool, bool>{false, false}, {true, false}, {false, true}})
      for (const bool by_row : {true, false}) {
        SCOPED_TRACE(fmt::format("{} x {} one scale {} known maxima {} by row {}", rows, columns,
                                 one_scale, known, by_row));
        Values values = normal(rows * columns);
        for (std::size_t i = 0; i < values.size(); i += 7) values[i] *= 1e-4;
        for (std::size_t i = 0; i < values.size(); i += 11) values[i] = 0;
        const std::vector<float> numbers = stored(values);
        const Tensor x = in(values, type(), {rows, columns});
        const Values before = {0.5, 3, 5, 7};
        QuantizeOptions o{.one_scale = one_scale};
        o.power_of_two = false;
        if (known) o.maxima = found_maxima(x);
        o.statistics = inout(before, DType::F32, {4});
        const std::vector<float> seen =
            by_row ? numbers : transposed(numbers, static_cast<std::size_t>(columns));
        const Fp8Matrix expected =
            reference_quantize(seen, static_cast<std::size_t>(by_row ? columns : rows), o);
        Values statistics = before;
        for (std::size_t i = 0; i < seen.size(); ++i) {
          statistics[0] = std::max(statistics[0], static_cast<double>(std::abs(seen[i])));
          const double now = number_of(expected.values[i]);
          if (seen[i] != 0 && now == 0) ++statistics[1];
          if (std::abs(now) == 448) ++statistics[2];
          ++statistics[3];
        }
        const Quantized result =
            by_row ? quantized(rows, columns, one_scale) : quantized(columns, rows, one_scale);
        backend().quantize(by_row ? result : Quantized{}, by_row ? Quantized{} : result, x, o);
        expect_equal("values", result, expected);
        EXPECT_EQ(read(o.statistics), statistics);
        // Both orientations: the rows count. The counts are added to those before.
        const Quantized other = quantized(columns, rows, one_scale);
        if (by_row) {
          for (std::size_t i = 1; i < 4; ++i) statistics[i] += statistics[i] - before[i];
          backend().quantize(result, other, x, o);
          EXPECT_EQ(read(o.statistics), statistics);
        }
        finish();
      }
}

// ---- matmul_fp8
struct Fp8Problem {
  std::int64_t m, n, k;
  bool one_scale = false, fast = false;
};

std::string describe(const Fp8Problem& p) {
  return fmt::format("m {} n {} k {}{}{}", p.m, p.n, p.k, p.one_scale ? ", one scale" : "",
                     p.fast ? ", fast" : "");
}

class Fp8MatmulTest : public Fp8Test {
 protected:
  struct Operand {
    Quantized tensor;
    Values numbers;  // (rows, k)
  };
  // Random codes, and scales between 2^-10 and 2^-2 that differ from row to row.
  Operand operand(std::int64_t rows, std::int64_t k, bool one_scale) {
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

  struct Case {
    Operand a, b;
    Values expected;
    Bound bound;
  };
  Case make(const Fp8Problem& p) {
    Case c{operand(p.m, p.k, p.one_scale), operand(p.n, p.k, p.one_scale), {}, {}};
    c.bound = {rounds(p), accumulator(), {}};
    const auto k = static_cast<std::size_t>(p.k);
    for (std::size_t i = 0; i < c.a.numbers.size(); i += k)
      for (std::size_t j = 0; j < c.b.numbers.size(); j += k) {
        double sum = 0, size = 0;
        for (std::size_t l = 0; l < k; ++l) {
          const double product = c.a.numbers[i + l] * c.b.numbers[j + l];
          sum += product;
          size += std::abs(product);
        }
        c.expected.push_back(sum);
        c.bound.size.push_back(size);
      }
    return c;
  }
  // The CPU accumulates in fp32, and fp64 is exact everywhere. The tensor cores of Hopper keep 14
  // bits of the sum of one instruction; without fast accumulation the sums of a few instructions
  // are added in fp32, so that their errors average out. The bound is relative to the sum of the
  // magnitudes: 2^-11, more for long sums with fast accumulation, less for long sums without it.
  // (An H200 was seen to lose up to 2^-12 of sums of 48 numbers, and of 4096 with fast
  // accumulation.)
  double rounds(const Fp8Problem& p) {
    const auto k = static_cast<double>(p.k);
    const double exact = 4 + std::sqrt(k);
    if (type() == DType::F64 || GetParam().backend.name == "cpu") return exact;
    const double hopper =
        p.fast ? std::max(1.0, std::sqrt(k) / 64) : 1 / std::sqrt(std::max(1.0, k / 512));
    return exact + 0x1p-11 * hopper / unit_roundoff(DType::F32);
  }
  static void add(Case& c, const Values& values) {  // values is a bias if it has only one row
    for (std::size_t i = 0; i < c.expected.size(); ++i) {
      c.expected[i] += values[i % values.size()];
      c.bound.size[i] += std::abs(values[i % values.size()]);
    }
  }
  bool runs(const Fp8Problem& p) { return backend().why_no_fp8(p.one_scale).empty(); }

  void check(const Fp8Problem& p, bool with_bias, bool with_residual, bool in_place) {
    if (!runs(p)) return;
    SCOPED_TRACE(fmt::format("{} bias {} residual {} in place {}", describe(p), with_bias,
                             with_residual, in_place));
    Case x = make(p);
    const Tensor c = allow(inside(type(), p.m, p.n, 16, 16));
    MatmulOptions options{.fast_accumulation = p.fast};
    if (with_bias) {
      const Values bias = activations(p.n);
      options.bias = in(bias, type(), {p.n});
      add(x, bias);
    }
    if (with_residual) {
      const Values residual = activations(p.m * p.n);
      if (in_place) write(c, residual);
      options.residual = in_place ? c : in(residual, type(), {p.m, p.n});
      add(x, residual);
      // cuBLASLt may round the sum before it adds c to it.
      if (in_place && type() != accumulator() && GetParam().backend.name != "cpu")
        x.bound.rounds += unit_roundoff(type()) / unit_roundoff(accumulator());
    }
    backend().matmul_fp8(c, x.a.tensor, x.b.tensor, options);
    expect_close("c", read(c), x.expected, type(), x.bound);
    finish();
  }
};
KINTSUGI_ON_EACH_BACKEND(Fp8MatmulTest);

TEST_P(Fp8MatmulTest, EveryDepth) {
  for (const std::int64_t k : {16, 48, 4096, 18944})
    for (const bool one_scale : {false, true})
      for (const bool fast : {false, true}) {
        check({32, 48, k, one_scale, fast}, false, false, false);
        if (k <= 48) check({272, 528, k, one_scale, fast}, false, false, false);
      }
}

TEST_P(Fp8MatmulTest, BiasAndResidual) {
  for (const bool one_scale : {false, true}) {
    const Fp8Problem p{.m = 64, .n = 48, .k = 160, .one_scale = one_scale};
    check(p, true, false, false);
    check(p, false, true, false);
    check(p, false, true, true);
    check(p, true, true, false);
    check(p, true, true, true);
  }
}

// Weight gradients: sums over micro-batches in accumulator precision.
TEST_P(Fp8MatmulTest, Accumulates) {
  for (const bool one_scale : {false, true}) {
    const Fp8Problem p{.m = 48, .n = 80, .k = 256, .one_scale = one_scale};
    if (!runs(p)) continue;
    SCOPED_TRACE(describe(p));
    const Values before = rounded(normal(p.m * p.n), accumulator());
    const Tensor c = inout(before, accumulator(), {p.m, p.n});
    Values expected = before, size = magnitudes(before);
    Bound bound;
    for (int i = 0; i < 3; ++i) {
      const Case x = make(p);
      bound = x.bound;
      for (std::size_t j = 0; j < expected.size(); ++j) {
        expected[j] += x.expected[j];
        size[j] += x.bound.size[j];
      }
      backend().matmul_fp8(c, x.a.tensor, x.b.tensor, {.accumulate = true});
    }
    bound.size = size;
    expect_close("c", read(c), expected, accumulator(), bound);
    finish();
  }
}

// The precision of a run decides c; the quantized operands are the same.
TEST_P(Fp8MatmulTest, MultipliesWhatQuantizeWrites) {
  const std::int64_t m = 48, n = 32, k = 96;
  if (!backend().why_no_fp8(false).empty()) GTEST_SKIP() << backend().why_no_fp8(false);
  const Values dy = activations(k * m), x = activations(k * n);
  const Quantized a = quantized(m, k, false), b = quantized(n, k, false);
  backend().quantize({}, a, in(dy, type(), {k, m}), {});
  backend().quantize({}, b, in(x, type(), {k, n}), {});
  const Tensor c = out(accumulator(), {m, n});
  backend().matmul_fp8(c, a, b);
  // A number is within 2^-4 of its code, or within 2^-10 scales, which are at most 2^-7 of the
  // largest number.
  Values expected, allowed;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0, error = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        const double left = dy[static_cast<std::size_t>(l * m + i)],
                     right = x[static_cast<std::size_t>(l * n + j)];
        sum += left * right;
        error += (std::abs(left) + 1e-3) * (std::abs(right) + 1e-3);
      }
      expected.push_back(sum);
      allowed.push_back(0.14 * error);
    }
  const Values actual = read(c);
  for (std::size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i], allowed[i]) << i;
}

}  // namespace
}  // namespace kintsugi
