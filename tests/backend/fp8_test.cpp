// fp8: the type, quantize() and maxima, against searches for the nearest number.
#include "backend/fp8_fixture.h"

namespace kintsugi {
namespace {

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
using Sizes = std::vector<std::pair<std::int64_t, std::int64_t>>;
Sizes brief(Sizes sizes) {
  std::erase_if(sizes, [](const auto& size) { return !is_brief(size.first * size.second); });
  return sizes;
}

TEST_P(Fp8Test, EverySize) {
  for (const auto& [rows, columns] : brief({{1, 1},
                                            {3, 5},
                                            {16, 8},
                                            {17, 40},
                                            {32, 33},
                                            {128, 64},
                                            {144, 72},
                                            {272, 520},
                                            {1000, 24},
                                            {3, 20480},
                                            {2, 41000}})) {
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

// Each matrix of a stack is quantized as if it were alone.
TEST_P(Fp8Test, StacksOfMatrices) {
  for (const auto& [m, n] : {std::pair<std::int64_t, std::int64_t>{144, 72}, {17, 24}, {16, 13}})
    for (const bool known : {false, true}) {
      SCOPED_TRACE(fmt::format("{} x {} known {}", m, n, known));
      constexpr std::int64_t kMatrices = 3;
      const Values values = normal(kMatrices * m * n);
      const Tensor x = in(values, type(), {kMatrices, m, n});
      const Quantized rows = quantized(kMatrices * m, n, false),
                      rows_alone = quantized(kMatrices * m, n, false),
                      columns = quantized(kMatrices * n, m, false),
                      columns_alone = quantized(kMatrices * n, m, false);
      QuantizeOptions o;
      if (known) {
        o.maxima = maxima(kMatrices * m, kMatrices * n);
        backend().find_maxima(o.maxima, x);
      }
      const Tensor statistics = inout({0, 0, 0, 0}, DType::F32, {4});
      o.statistics = statistics;
      backend().quantize(rows, columns, x, o);
      EXPECT_EQ(download<float>(statistics)[3], static_cast<float>(kMatrices * m * n));
      o.statistics = {};
      backend().quantize(rows_alone, {}, x, o);
      backend().quantize({}, columns_alone, x, o);
      const std::vector<float> all = stored(values);
      const auto each = static_cast<std::ptrdiff_t>(m * n);
      for (std::int64_t i = 0; i < kMatrices; ++i) {
        const std::vector<float> numbers(all.begin() + i * each, all.begin() + (i + 1) * each);
        const Fp8Matrix in_rows = reference_quantize(numbers, static_cast<std::size_t>(n), o),
                        in_columns =
                            reference_quantize(transposed(numbers, static_cast<std::size_t>(n)),
                                               static_cast<std::size_t>(m), o);
        for (const Quantized& q : {rows, rows_alone})
          expect_equal("rows", q.part(i * m, m), in_rows);
        for (const Quantized& q : {columns, columns_alone})
          expect_equal("columns", q.part(i * n, n), in_columns);
      }
      finish();
    }
}

// Of the rows of experts, those behind the last expert's are neither read nor written.
TEST_P(Fp8Test, UsedRowsOfExperts) {
  for (const std::int64_t width : {40, 13})
    for (const std::int64_t used : {0, 1, 131, 140}) {
      SCOPED_TRACE(fmt::format("{} rows of {}", used, width));
      constexpr std::int64_t kAll = 140;
      Values values = normal(used * width);
      const Tensor x = buffer(type(), {kAll, width});  // NaN
      if (used > 0) write(x.rows(0, used), values);
      const QuantizeOptions o{.used = {.rows = in(Ids(kAll, 0), {kAll}),
                                       .offsets = in(Ids{0, static_cast<std::int32_t>(used) / 2,
                                                         static_cast<std::int32_t>(used)},
                                                     {3})}};
      const Quantized all{buffer(DType::F8, {kAll, width}), buffer(DType::F32, {kAll})};
      const Quantized rows = all.part(0, used);
      if (used > 0) allow(rows.values), allow(rows.scales);
      const Tensor statistics = inout({0, 0, 0, 0}, DType::F32, {4});
      for (const Tensor& counts : {Tensor(), statistics}) {
        QuantizeOptions counted = o;
        counted.statistics = counts;
        backend().quantize(all, {}, x, counted);
        if (used > 0)
          expect_equal("rows", rows,
                       reference_quantize(stored(values), static_cast<std::size_t>(width), o));
      }
      EXPECT_EQ(download<float>(statistics)[3], static_cast<float>(used * width));
      EXPECT_TRUE(std::isfinite(download<float>(statistics)[0]));
      finish();
    }
}

// ---- maxima
const Sizes kMaximaSizes = brief({{1, 1},
                                  {3, 5},
                                  {16, 8},
                                  {33, 40},
                                  {65, 33},
                                  {128, 256},
                                  {144, 72},
                                  {130, 264},
                                  {300, 520},
                                  {1000, 24},
                                  {3, 20480},
                                  {257, 1031}});

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

// ---- operations that find the maxima of their result: it is the same as without them
class Fp8MaximaTest : public Fp8Test {
 protected:
  void expect_same(const std::string& what, const Values& actual, const Values& expected) {
    ASSERT_EQ(actual.size(), expected.size()) << what;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
      ASSERT_EQ(actual[i], expected[i]) << what << " element " << i;
    }
  }
  // Sums over `rows` numbers of about 1, in another order.
  void expect_sums(const std::string& what, const Values& actual, const Values& expected,
                   std::int64_t rows) {
    const double tolerance = 3e-7 * static_cast<double>(rows);
    ASSERT_EQ(actual.size(), expected.size()) << what;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      if (!std::isfinite(actual[i]) && !std::isfinite(expected[i])) continue;
      ASSERT_NEAR(actual[i], expected[i], tolerance) << what << " element " << i;
    }
  }
  static std::vector<float> floats(const Values& values) { return {values.begin(), values.end()}; }
  void expect_result(const std::string& what, const Tensor& actual, const Maxima& maxima,
                     const Tensor& expected) {
    expect_same(what, read(actual), read(expected));
    expect_maxima(maxima, floats(read(actual)));
  }
};

class Fp8SwigluTest : public Fp8MaximaTest {
 protected:
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

// All sizes above, and for the type of fp8 runs more rows than are on a GPU at once, of widths that
// a warp or a block takes.
Sizes norm_sizes(DType type) {
  Sizes sizes = kMaximaSizes;
  if (type == DType::BF16)
    sizes.insert(sizes.end(), {{6000, 256},
                               {1500, 1024},
                               {1100, 2056},
                               {140, 4096},
                               {20, 8208},
                               {5, 1024},
                               {5, 2056},
                               {5, 4096},
                               {5, 8208}});
  return brief(sizes);
}

class Fp8NormTest : public Fp8MaximaTest {
 protected:
  static constexpr double kEps = 1e-5;
  struct Norm {
    bool rms;
    std::int64_t rows, width;
    Tensor x, weight, bias, mean, rstd;
  };
  Norm norm(bool rms, std::int64_t rows, std::int64_t width, bool finite) {
    const Values x = normal(rows * width, 1.0, 0.3);
    return {.rms = rms,
            .rows = rows,
            .width = width,
            .x = in(finite ? x : with_infinities(x), type(), {rows, width}),
            .weight = in(normal(width, 0.3, 1.0), type(), {width}),
            .bias = in(normal(width), type(), {width}),
            .mean = out(accumulator(), {rows}),
            .rstd = out(accumulator(), {rows})};
  }
  void forward(const Norm& n, Tensor y, const Maxima& maxima) {
    if (n.rms)
      backend().rms_norm_forward(y, n.rstd, n.x, n.weight, kEps, maxima);
    else
      backend().layer_norm_forward(y, n.mean, n.rstd, n.x, n.weight, n.bias, kEps, maxima);
  }
  void backward(const Norm& n, Tensor dx, Tensor dweight, Tensor dbias, Tensor dy, Tensor residual,
                const Maxima& maxima) {
    if (n.rms)
      backend().rms_norm_backward(dx, dweight, dy, n.x, n.weight, n.rstd, residual, maxima);
    else
      backend().layer_norm_backward(dx, dweight, dbias, dy, n.x, n.weight, n.mean, n.rstd, residual,
                                    maxima);
  }
  void check_forward(const Norm& n) {
    const Shape shape{n.rows, n.width};
    const Tensor y = out(type(), shape), alone = out(type(), shape);
    const Maxima found = maxima(n.rows, n.width);
    forward(n, alone, {});
    const Values rstd = read(n.rstd), mean = n.rms ? Values() : read(n.mean);
    forward(n, y, found);
    expect_result("y", y, found, alone);
    expect_same("rstd", read(n.rstd), rstd);
    if (!n.rms) expect_same("mean", read(n.mean), mean);
  }
  // With the gradient of the residual stream, which dx overwrites, or without; with frozen weights.
  void check_backward(const Norm& n, bool residual, bool trained) {
    const Shape shape{n.rows, n.width};
    const Values before = normal(n.rows * n.width);
    const auto gradient = [&] {
      return trained ? inout(Values(static_cast<std::size_t>(n.width)), accumulator(), {n.width})
                     : Tensor();
    };
    const Tensor dy = in(normal(n.rows * n.width), type(), shape);
    const Tensor dx = inout(before, type(), shape), alone = inout(before, type(), shape);
    const Tensor dweight = gradient(), dbias = gradient(), dweight_alone = gradient(),
                 dbias_alone = gradient();
    const Maxima found = maxima(n.rows, n.width, false);
    backward(n, alone, dweight_alone, dbias_alone, dy, residual ? alone : Tensor(), {});
    backward(n, dx, dweight, dbias, dy, residual ? dx : Tensor(), found);
    expect_result("dx", dx, found, alone);
    if (!trained) return;
    expect_sums("dweight", read(dweight), read(dweight_alone), n.rows);
    expect_sums("dbias", read(dbias), read(dbias_alone), n.rows);
  }
};
KINTSUGI_ON_EACH_BACKEND(Fp8NormTest);

TEST_P(Fp8NormTest, EverySize) {
  for (const bool rms : {true, false})
    for (const auto& [rows, width] : norm_sizes(type())) {
      SCOPED_TRACE(fmt::format("{} {} x {}", rms ? "rms" : "layer", rows, width));
      const Norm n = norm(rms, rows, width, true);
      check_forward(n);
      check_backward(n, true, true);
      finish();
    }
}

TEST_P(Fp8NormTest, NotFiniteOrFrozen) {
  for (const bool rms : {true, false})
    for (const auto& [rows, width] : brief({{40, 264}, {140, 2304}, {5, 2304}, {65, 33}})) {
      SCOPED_TRACE(fmt::format("{} {} x {}", rms ? "rms" : "layer", rows, width));
      const Norm n = norm(rms, rows, width, false);
      check_forward(n);
      check_backward(n, false, true);
      check_backward(n, true, false);
      finish();
    }
}

class Fp8GeluTest : public Fp8MaximaTest {};
KINTSUGI_ON_EACH_BACKEND(Fp8GeluTest);

TEST_P(Fp8GeluTest, EverySize) {
  for (const auto& [rows, width] : kMaximaSizes)
    for (const bool finite : {true, false}) {
      SCOPED_TRACE(fmt::format("{} x {} finite {}", rows, width, finite));
      const Shape shape{rows, width};
      const Values values = normal(rows * width, 2.0), gradient = normal(rows * width);
      const Tensor x = in(finite ? values : with_infinities(values), type(), shape);
      const Tensor y = out(type(), shape), y_alone = out(type(), shape);
      const Maxima of_y = maxima(rows, width), of_dx = maxima(rows, width, false);
      backend().gelu_forward(y_alone, x);
      backend().gelu_forward(y, x, of_y);
      expect_result("y", y, of_y, y_alone);
      // dx overwrites dout
      const Tensor dx = inout(gradient, type(), shape), dx_alone = inout(gradient, type(), shape);
      backend().gelu_backward(dx_alone, dx_alone, x);
      backend().gelu_backward(dx, dx, x, of_dx);
      expect_result("dx", dx, of_dx, dx_alone);
      finish();
    }
}

class Fp8RopeTest : public Fp8MaximaTest {
 protected:
  void check_rope(const Tensor& x, const Tensor& alone, std::int64_t dim, std::int64_t heads) {
    const std::int64_t tokens = x.extent(0), width = x.extent(1), positions = 50;
    const Values values = normal(tokens * width);
    write(x, values);
    write(alone, values);
    const Tensor table = in(normal(positions * dim), accumulator(), {positions, dim}),
                 at = in(integers(tokens, 0, positions - 1), {tokens});
    const Maxima found = maxima(tokens, width);
    backend().rope(alone.part(1, 0, heads * dim).split_last(dim), table, at, true);
    backend().rope_backward(x, table, at, heads, found);
    expect_result("x", x, found, alone);
    finish();
  }
};
KINTSUGI_ON_EACH_BACKEND(Fp8RopeTest);

// q and k rotated, v not.
TEST_P(Fp8RopeTest, EverySize) {
  for (const std::int64_t dim : {2, 16, 20, 64, 80, 128})
    for (const std::int64_t tokens : {1, 17, 131, 300}) {
      SCOPED_TRACE(fmt::format("dim {} tokens {}", dim, tokens));
      const Shape shape{tokens, 9 * dim};
      check_rope(out(type(), shape), out(type(), shape), dim, 7);
    }
}

TEST_P(Fp8RopeTest, StridedRows) {
  for (const auto& [skip, rest] : {std::pair<std::int64_t, std::int64_t>{8, 16}, {3, 2}}) {
    SCOPED_TRACE(fmt::format("skip {} rest {}", skip, rest));
    check_rope(allow(inside(type(), 70, 4 * 64, skip, rest)),
               allow(inside(type(), 70, 4 * 64, skip, rest)), 64, 3);
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

}  // namespace
}  // namespace kintsugi
