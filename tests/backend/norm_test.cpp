// RMSNorm and LayerNorm, which differ in the mean and the bias only.
#include "backend/operation_fixture.h"

namespace kintsugi {
namespace {

enum class Kind { Rms, Layer };

// Expected results of a norm over (rows, width): forward, and backward of the gradient dy.
struct NormReference {
  Values y, mean, rstd, dx, dweight, dbias;
};

NormReference reference(Kind kind, std::int64_t rows, std::int64_t width, const Values& x,
                        const Values& weight, const Values& bias, const Values& dy, double eps) {
  const auto n = static_cast<std::size_t>(width);
  NormReference r;
  r.y = r.dx = Values(x.size());
  r.dweight = r.dbias = Values(n, 0.0);
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
    const double* from = &x[row * n];
    const double* gradient = &dy[row * n];
    double mean = 0, variance = 0;
    if (kind == Kind::Layer)
      for (std::size_t i = 0; i < n; ++i) mean += from[i] / static_cast<double>(n);
    for (std::size_t i = 0; i < n; ++i)
      variance += (from[i] - mean) * (from[i] - mean) / static_cast<double>(n);
    const double rstd = 1 / std::sqrt(variance + eps);
    r.mean.push_back(mean);
    r.rstd.push_back(rstd);
    double sum_g = 0, sum_gh = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double h = (from[i] - mean) * rstd, g = gradient[i] * weight[i];
      r.y[row * n + i] = h * weight[i] + (kind == Kind::Layer ? bias[i] : 0);
      r.dweight[i] += gradient[i] * h;
      r.dbias[i] += gradient[i];
      sum_g += kind == Kind::Layer ? g : 0;
      sum_gh += g * h;
    }
    for (std::size_t i = 0; i < n; ++i) {
      const double h = (from[i] - mean) * rstd, g = gradient[i] * weight[i];
      r.dx[row * n + i] =
          rstd * (g - sum_g / static_cast<double>(n) - h * sum_gh / static_cast<double>(n));
    }
  }
  return r;
}

// By how much each element's error grows if the values of a row are close to each other, because
// subtracting the mean cancels digits.
Values condition(Kind kind, const NormReference& r, const Values& x, std::int64_t width) {
  Values result(x.size(), 1.0);
  if (kind == Kind::Rms) return result;
  const double top = largest(x);
  for (std::size_t i = 0; i < x.size(); ++i)
    result[i] += top * r.rstd[i / static_cast<std::size_t>(width)];
  return result;
}

Values times(Values values, double factor) {
  for (double& value : values) value *= factor;
  return values;
}

// The memory layout of the rows of x, y and their gradients.
enum class NormMemoryLayout { Contiguous, InsideWiderRows, HeadsOfPackedRows, PackedPerHead };
enum class Residual { None, Separate, IsDx, DyIsDx };  // DyIsDx: no residual; dx overwrites dy

class NormTest : public OperationTest {
 protected:
  static constexpr double kEps = 1e-5;

  // rows = tokens x heads if the layout has heads.
  Tensor rows_at(NormMemoryLayout layout, std::int64_t rows, std::int64_t width) {
    constexpr std::int64_t kHeads = 3;
    if (layout == NormMemoryLayout::Contiguous) return buffer(type(), {rows, width});
    if (layout == NormMemoryLayout::InsideWiderRows) return inside(type(), rows, width, 8, 5);
    if (layout == NormMemoryLayout::PackedPerHead)
      return buffer(type(), {rows / kHeads, kHeads, 3 * width}).part(2, width, width);
    return inside(type(), rows / kHeads, kHeads * width, 2 * width, width).split_last(width);
  }
  Tensor rows_at(NormMemoryLayout layout, std::int64_t rows, std::int64_t width,
                 const Values& values) {
    const Tensor view = rows_at(layout, rows, width);
    write(view, values);
    return view;
  }
  void forward(Kind kind, Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor weight,
               Tensor bias) {
    if (kind == Kind::Rms)
      backend().rms_norm_forward(y, rstd, x, weight, kEps);
    else
      backend().layer_norm_forward(y, mean, rstd, x, weight, bias, kEps);
  }
  void backward(Kind kind, Tensor dx, Tensor dweight, Tensor dbias, Tensor dy, Tensor x,
                Tensor weight, Tensor mean, Tensor rstd, Tensor residual_gradient = {}) {
    if (kind == Kind::Rms)
      backend().rms_norm_backward(dx, dweight, dy, x, weight, rstd, residual_gradient);
    else
      backend().layer_norm_backward(dx, dweight, dbias, dy, x, weight, mean, rstd,
                                    residual_gradient);
  }

  void check(Kind kind, std::int64_t rows, std::int64_t width, NormMemoryLayout layout,
             Residual residual) {
    SCOPED_TRACE(fmt::format("{} rows {} width {} layout {} residual {}",
                             kind == Kind::Rms ? "rms" : "layer", rows, width,
                             static_cast<int>(layout), static_cast<int>(residual)));
    const Values x = activations(rows * width, 1.0, 0.3), w = activations(width, 0.3, 1.0);
    const Values b = activations(width), dy = activations(rows * width),
                 extra = activations(rows * width);
    const Values dweight_before = rounded(normal(width), accumulator());
    const Values dbias_before = rounded(normal(width), accumulator());
    const NormReference expected = reference(kind, rows, width, x, w, b, dy, kEps);
    const Tensor weight = in(w, type(), {width}), bias = in(b, type(), {width});
    const Tensor mean = out(accumulator(), {rows}), rstd = out(accumulator(), {rows});
    const Tensor from = rows_at(layout, rows, width, x), y = allow(rows_at(layout, rows, width));

    forward(kind, y, mean, rstd, from, weight, bias);
    const double rounds = 16 + std::sqrt(static_cast<double>(width));
    const Values grows = condition(kind, expected, x, width);
    const double largest_y = std::max(largest(w), largest(expected.y));
    expect_close("y", read(y), expected.y, type(),
                 {rounds, accumulator(), times(grows, largest_y)});
    expect_close("rstd", read(rstd), expected.rstd, accumulator(),
                 {rounds, accumulator(), {largest(expected.rstd) * largest(grows)}});
    if (kind == Kind::Layer)
      expect_close("mean", read(mean), expected.mean, accumulator(),
                   {rounds, accumulator(), {largest(x)}});

    const Tensor dx = allow(rows_at(layout, rows, width));
    Tensor residual_gradient;
    if (residual == Residual::IsDx) write(dx, extra);
    if (residual == Residual::DyIsDx) write(dx, dy);
    if (residual == Residual::IsDx) residual_gradient = dx;
    if (residual == Residual::Separate) residual_gradient = rows_at(layout, rows, width, extra);
    const Tensor dweight = inout(dweight_before, accumulator(), {width});
    const Tensor dbias = inout(dbias_before, accumulator(), {width});
    const Tensor gradient = residual == Residual::DyIsDx ? dx : rows_at(layout, rows, width, dy);
    backward(kind, dx, dweight, dbias, gradient, from, weight, mean, rstd, residual_gradient);

    Values dx_expected = expected.dx, dweight_expected = expected.dweight,
           dbias_expected = expected.dbias;
    const bool adds = residual == Residual::Separate || residual == Residual::IsDx;
    for (std::size_t i = 0; i < extra.size(); ++i) dx_expected[i] += adds ? extra[i] : 0;
    for (std::size_t i = 0; i < dweight_before.size(); ++i) {
      dweight_expected[i] += dweight_before[i];
      dbias_expected[i] += dbias_before[i];
    }
    Values dx_size = times(grows, largest(dy) * largest(w));
    for (std::size_t i = 0; i < dx_size.size(); ++i)
      dx_size[i] *= expected.rstd[i / static_cast<std::size_t>(width)];
    const double row_rounds = 16 + std::sqrt(static_cast<double>(rows));
    expect_close("dx", read(dx), dx_expected, type(), {rounds, accumulator(), dx_size});
    const Values column = {row_rounds * largest(dy) * largest(grows)};
    expect_close("dweight", read(dweight), dweight_expected, accumulator(),
                 {row_rounds, accumulator(), column});
    if (kind == Kind::Layer)
      expect_close("dbias", read(dbias), dbias_expected, accumulator(),
                   {row_rounds, accumulator(), column});
    else
      EXPECT_EQ(read(dbias), dbias_before);
    if (residual == Residual::None) {  // weights that are not trained
      const Tensor alone = allow(rows_at(layout, rows, width));
      backward(kind, alone, {}, {}, gradient, from, weight, mean, rstd);
      expect_close("dx alone", read(alone), dx_expected, type(), {rounds, accumulator(), dx_size});
    }
    finish();
  }

  void check_shapes(Kind kind) {
    for (const std::int64_t width : {1, 2, 7, 8, 20, 33, 64, 80, 128, 257, 1000})
      for (const std::int64_t rows : {1, 2, 17, 131})
        check(kind, rows, width, NormMemoryLayout::Contiguous,
              rows % 2 ? Residual::IsDx : Residual::None);
    check(kind, 1030, 24, NormMemoryLayout::Contiguous, Residual::Separate);
  }
  void check_layouts(Kind kind) {
    for (const NormMemoryLayout layout :
         {NormMemoryLayout::Contiguous, NormMemoryLayout::InsideWiderRows,
          NormMemoryLayout::HeadsOfPackedRows, NormMemoryLayout::PackedPerHead})
      for (const Residual residual :
           {Residual::None, Residual::Separate, Residual::IsDx, Residual::DyIsDx})
        for (const std::int64_t width : {8, 20, 128}) check(kind, 39, width, layout, residual);
  }
};
KINTSUGI_ON_EACH_BACKEND(NormTest);

TEST_P(NormTest, RmsShapes) { check_shapes(Kind::Rms); }
TEST_P(NormTest, LayerShapes) { check_shapes(Kind::Layer); }
TEST_P(NormTest, RmsStridesAndResiduals) { check_layouts(Kind::Rms); }
TEST_P(NormTest, LayerStridesAndResiduals) { check_layouts(Kind::Layer); }

// RMSNorm of rows whose columns are sharded over ranks: each rank computes partial sums, these are
// added up, and each rank merges them.
class ShardedNormTest : public NormTest {
 protected:
  struct Shard {
    std::int64_t first, columns;
  };
  static std::vector<Shard> shards_of(const std::vector<std::int64_t>& widths) {
    std::vector<Shard> shards;
    std::int64_t first = 0;
    for (const std::int64_t width : widths) shards.push_back({first, width}), first += width;
    return shards;
  }
  // Copies a shard's columns out of (rows, width) values, and back.
  static Values columns_of(const Values& whole, std::int64_t width, const Shard& shard) {
    Values values;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const std::int64_t column = static_cast<std::int64_t>(i) % width - shard.first;
      if (column >= 0 && column < shard.columns) values.push_back(whole[i]);
    }
    return values;
  }
  static void put_columns(Values& whole, std::int64_t width, const Shard& shard,
                          const Values& values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      whole[static_cast<std::size_t>(at / shard.columns * width + shard.first +
                                     at % shard.columns)] = values[i];
    }
  }

  struct Result {
    Values y, dx, dweight;
  };
  // rows = tokens x heads if the layout has heads. dweight is added to 1.
  Result in_shards(const std::vector<std::int64_t>& widths, std::int64_t rows,
                   NormMemoryLayout layout, bool dy_is_dx, const Values& x, const Values& w,
                   const Values& dy) {
    const std::vector<Shard> shards = shards_of(widths);
    const std::int64_t width = shards.back().first + shards.back().columns;
    Result result{Values(x.size()), Values(x.size()), Values(w.size())};
    const auto sum_of = [&](const auto& partial) {
      const Tensor total =
          inout(Values(static_cast<std::size_t>(rows), 0.0), accumulator(), {rows});
      for (const Shard& shard : shards) {
        const Tensor sums = out(accumulator(), {rows});
        partial(shard, sums);
        backend().add(total, sums);
      }
      return total;
    };
    const auto from = [&](const Values& whole, const Shard& shard) {
      return rows_at(layout, rows, shard.columns, columns_of(whole, width, shard));
    };
    const auto weight = [&](const Shard& shard) {
      return in(columns_of(w, width, shard), type(), {shard.columns});
    };
    const Tensor squares = sum_of([&](const Shard& shard, const Tensor& sums) {
      backend().rms_norm_partial(sums, from(x, shard));
    });
    Tensor rstd;
    for (const Shard& shard : shards) {
      const Tensor y = allow(rows_at(layout, rows, shard.columns));
      rstd = out(accumulator(), {rows});
      backend().rms_norm_merged(y, rstd, from(x, shard), weight(shard), squares, width, kEps);
      put_columns(result.y, width, shard, read(y));
    }
    const Tensor dots = sum_of([&](const Shard& shard, const Tensor& sums) {
      backend().rms_norm_backward_partial(sums, from(dy, shard), from(x, shard), weight(shard));
    });
    for (const Shard& shard : shards) {
      const Tensor dx = allow(rows_at(layout, rows, shard.columns)), gradient = from(dy, shard);
      if (dy_is_dx) write(dx, columns_of(dy, width, shard));
      const Tensor dweight = inout(Values(static_cast<std::size_t>(shard.columns), 1.0),
                                   accumulator(), {shard.columns});
      backend().rms_norm_backward_merged(dx, dweight, dy_is_dx ? dx : gradient, from(x, shard),
                                         weight(shard), rstd, dots, width);
      put_columns(result.dx, width, shard, read(dx));
      put_columns(result.dweight, width, shard, read(dweight));
    }
    return result;
  }

  void check_shards(const std::vector<std::int64_t>& widths, std::int64_t rows,
                    NormMemoryLayout layout, bool dy_is_dx) {
    std::int64_t width = 0;
    for (const std::int64_t columns : widths) width += columns;
    SCOPED_TRACE(fmt::format("{} shards of {} rows of {}, layout {}", widths.size(), rows, width,
                             static_cast<int>(layout)));
    const Values x = activations(rows * width, 1.0, 0.3), w = activations(width, 0.3, 1.0),
                 dy = activations(rows * width);
    const Result found = in_shards(widths, rows, layout, dy_is_dx, x, w, dy);
    NormReference expected = reference(Kind::Rms, rows, width, x, w, w, dy, kEps);
    for (double& value : expected.dweight) value += 1;
    const double rounds = 16 + std::sqrt(static_cast<double>(width)),
                 row_rounds = 16 + std::sqrt(static_cast<double>(rows));
    expect_close("y", found.y, expected.y, type(), {rounds, accumulator(), {largest(expected.y)}});
    expect_close("dx", found.dx, expected.dx, type(),
                 {rounds, accumulator(), {largest(dy) * largest(w) * largest(expected.rstd)}});
    expect_close("dweight", found.dweight, expected.dweight, accumulator(),
                 {row_rounds, accumulator(), {row_rounds * largest(dy)}});
    finish();
  }
};
KINTSUGI_ON_EACH_BACKEND(ShardedNormTest);

TEST_P(ShardedNormTest, IsTheNormOfTheWhole) {
  check_shards({20}, 5, NormMemoryLayout::Contiguous, false);
  check_shards({8, 24}, 17, NormMemoryLayout::Contiguous, true);
  check_shards({7, 1, 30}, 131, NormMemoryLayout::Contiguous, false);
  check_shards({512, 64, 128}, 33, NormMemoryLayout::InsideWiderRows, true);
  check_shards({8, 40}, 39, NormMemoryLayout::HeadsOfPackedRows, false);
  check_shards({64, 16}, 39, NormMemoryLayout::PackedPerHead, true);
  check_shards({2500, 700}, 9, NormMemoryLayout::Contiguous, false);
}

class ShardedNormGradientTest : public ShardedNormTest {};
KINTSUGI_ON_EACH_BACKEND(ShardedNormGradientTest, {DType::F64});

TEST_P(ShardedNormGradientTest, MatchesTheOperationsOnTheWhole) {
  for (const std::vector<std::int64_t>& widths :
       {std::vector<std::int64_t>{11, 26}, std::vector<std::int64_t>{5, 19, 13}}) {
    const std::int64_t rows = 23, width = 37;
    const Values x = activations(rows * width), w = activations(width, 0.3, 1.0),
                 dy = activations(rows * width);
    const Result found = in_shards(widths, rows, NormMemoryLayout::Contiguous, false, x, w, dy);
    const Tensor from = in(x, type(), {rows, width}), weight = in(w, type(), {width});
    const Tensor y = out(type(), {rows, width}), dx = out(type(), {rows, width});
    const Tensor rstd = out(type(), {rows}), dweight = inout(Values(37, 1.0), type(), {width});
    backend().rms_norm_forward(y, rstd, from, weight, kEps);
    backend().rms_norm_backward(dx, dweight, in(dy, type(), {rows, width}), from, weight, rstd);
    const auto near = [](const char* what, const Values& actual, const Values& expected) {
      for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(actual[i], expected[i], 1e-12) << what << " " << i;
    };
    near("y", found.y, read(y));
    near("dx", found.dx, read(dx));
    near("dweight", found.dweight, read(dweight));

    const auto forward_x = [&](const Values& moved) {
      return in_shards(widths, rows, NormMemoryLayout::Contiguous, false, moved, w, dy).y;
    };
    const auto forward_w = [&](const Values& moved) {
      return in_shards(widths, rows, NormMemoryLayout::Contiguous, false, x, moved, dy).y;
    };
    const Values x_direction = normal(rows * width), w_direction = normal(width);
    Values dw = found.dweight;
    for (double& value : dw) value -= 1;
    EXPECT_NEAR(slope_along(forward_x, x, x_direction, dy), dot(found.dx, x_direction), 1e-7);
    EXPECT_NEAR(slope_along(forward_w, w, w_direction, dy), dot(dw, w_direction), 1e-7);
  }
}

// Squares overflow in fp16, so they must not be computed in fp16.
TEST_P(NormTest, LargeActivations) {
  const std::int64_t rows = 5, width = 300;
  const Values x = activations(rows * width, 2000.0), w = activations(width),
               b = activations(width);
  const Values dy = activations(rows * width);
  for (const Kind kind : {Kind::Rms, Kind::Layer}) {
    const Tensor y = out(type(), {rows, width});
    forward(kind, y, out(accumulator(), {rows}), out(accumulator(), {rows}),
            in(x, type(), {rows, width}), in(w, type(), {width}), in(b, type(), {width}));
    expect_close("y", read(y), reference(kind, rows, width, x, w, b, dy, kEps).y, type(),
                 {40, accumulator()});
    finish();
  }
}

class NormOfALargeMeanTest : public NormTest {};  // only types with enough digits
KINTSUGI_ON_EACH_BACKEND(NormOfALargeMeanTest, {DType::F64, DType::F32});

// A variance computed as E[x^2] - E[x]^2 would lose every digit here.
TEST_P(NormOfALargeMeanTest, Layer) {
  const std::int64_t rows = 3, width = 513;
  const Values x = activations(rows * width, 1.0, 3000.0), w = activations(width),
               b = activations(width);
  const Tensor y = out(type(), {rows, width});
  forward(Kind::Layer, y, out(accumulator(), {rows}), out(accumulator(), {rows}),
          in(x, type(), {rows, width}), in(w, type(), {width}), in(b, type(), {width}));
  expect_close("y", read(y), reference(Kind::Layer, rows, width, x, w, b, x, kEps).y, type(),
               {64, accumulator(), {3000.0}});
}

class NormGradientTest : public NormTest {
 protected:
  // The backward against finite differences of the forward, along a random direction of each input.
  void check_slopes(Kind kind) {
    const std::int64_t rows = 7, width = 19;
    const Values x = activations(rows * width), w = activations(width, 0.3, 1.0),
                 b = activations(width);
    const Values dy = activations(rows * width);
    const Tensor from = in(x, type(), {rows, width}), y = out(type(), {rows, width});
    const Tensor weight = in(w, type(), {width}), bias = in(b, type(), {width});
    const Tensor mean = out(type(), {rows}), rstd = out(type(), {rows});
    const auto moved = [&](Tensor operand) {
      return [&, operand](const Values& values) {
        write(operand, values);
        forward(kind, y, mean, rstd, from, weight, bias);
        return read(y);
      };
    };
    forward(kind, y, mean, rstd, from, weight, bias);
    const Tensor dx = out(type(), {rows, width});
    const Tensor dweight = inout(Values(19, 0.0), type(), {width}),
                 dbias = inout(Values(19, 0.0), type(), {width});
    backward(kind, dx, dweight, dbias, in(dy, type(), {rows, width}), from, weight, mean, rstd);
    const Values dx_values = read(dx), dweight_values = read(dweight), dbias_values = read(dbias);

    const auto check = [&](Tensor operand, const Values& at, const Values& gradient) {
      const Values direction = normal(operand.elements());
      EXPECT_NEAR(slope_along(moved(operand), at, direction, dy), dot(gradient, direction), 1e-8);
      write(operand, at);
    };
    check(from, x, dx_values);
    check(weight, w, dweight_values);
    if (kind == Kind::Layer) check(bias, b, dbias_values);
  }
};
KINTSUGI_ON_EACH_BACKEND(NormGradientTest, {DType::F64});

TEST_P(NormGradientTest, Rms) { check_slopes(Kind::Rms); }
TEST_P(NormGradientTest, Layer) { check_slopes(Kind::Layer); }

}  // namespace
}  // namespace kintsugi
