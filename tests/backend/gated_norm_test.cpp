#include "backend/operation_fixture.h"

namespace kintsugi {
namespace {

struct Reference {
  Values y, rstd, dx, dgate;
};

Reference reference(std::int64_t width, const Values& x, const Values& gate, const Values& dy,
                    double eps) {
  const auto n = static_cast<std::size_t>(width);
  Reference r;
  r.y = r.dx = r.dgate = Values(x.size());
  for (std::size_t row = 0; row < x.size(); row += n) {
    double squares = 0, mean = 0;
    for (std::size_t i = row; i < row + n; ++i) squares += x[i] * x[i];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
    r.rstd.push_back(rstd);
    for (std::size_t i = row; i < row + n; ++i) {
      const double s = 1 / (1 + std::exp(-gate[i])), silu = gate[i] * s, h = x[i] * rstd;
      r.y[i] = silu * h;
      r.dgate[i] = dy[i] * h * s * (1 + gate[i] * (1 - s));
      mean += dy[i] * silu * h / static_cast<double>(n);
    }
    for (std::size_t i = row; i < row + n; ++i) {
      const double silu = gate[i] / (1 + std::exp(-gate[i]));
      r.dx[i] = rstd * (dy[i] * silu - x[i] * rstd * mean);
    }
  }
  return r;
}

enum class MemoryLayout { Contiguous, HeadsOfPackedRows };

class GatedNormTest : public OperationTest {
 protected:
  static constexpr double kEps = 1e-6;

  Tensor heads_at(MemoryLayout layout, std::int64_t tokens, std::int64_t heads,
                  std::int64_t width) {
    if (layout == MemoryLayout::Contiguous) return buffer(type(), {tokens, heads, width});
    return inside(type(), tokens, heads * width, 2 * heads * width, heads * width)
        .split_last(width);
  }

  // With `in_place`, dx overwrites dy and dgate overwrites the gate.
  void check(std::int64_t tokens, std::int64_t heads, std::int64_t width, MemoryLayout layout,
             bool in_place) {
    SCOPED_TRACE(fmt::format("tokens {} heads {} width {} layout {} in place {}", tokens, heads,
                             width, static_cast<int>(layout), in_place));
    const std::int64_t count = tokens * heads * width;
    const Values x = activations(count), g = activations(count, 2.0), dy = activations(count);
    const Reference expected = reference(width, x, g, dy, kEps);
    const auto operand = [&](const Values& values) {
      const Tensor view = heads_at(layout, tokens, heads, width);
      write(view, values);
      return view;
    };
    const auto result = [&] { return allow(heads_at(layout, tokens, heads, width)); };
    const Tensor from = operand(x), gate = operand(g), gradient = operand(dy);
    const Tensor y = result(), rstd = out(accumulator(), {tokens, heads});
    backend().gated_norm_forward(y, rstd, from, gate, kEps);
    const double rounds = 16 + std::sqrt(static_cast<double>(width));
    // The fast exponential of 16-bit kernels is somewhat more accurate than their type.
    const double slack = narrow() ? 256 : rounds;
    expect_close("y", read(y), expected.y, type(), {slack, accumulator()});
    expect_close("rstd", read(rstd), expected.rstd, accumulator(), {rounds, accumulator()});
    const Tensor dx = in_place ? allow(gradient) : result(),
                 dgate = in_place ? allow(gate) : result();
    backend().gated_norm_backward(dx, dgate, gradient, from, gate, rstd);
    Values dx_size(x.size());  // the size of the terms, which cancel in short rows
    const double top = largest(dy) * largest(g);
    for (std::size_t i = 0; i < x.size(); ++i)
      dx_size[i] = expected.rstd[i / static_cast<std::size_t>(width)] * top;
    expect_close("dx", read(dx), expected.dx, type(), {slack, accumulator(), dx_size});
    expect_close("dgate", read(dgate), expected.dgate, type(), {slack, accumulator()});
    finish();
  }
};
KINTSUGI_ON_EACH_BACKEND(GatedNormTest);

TEST_P(GatedNormTest, Shapes) {
  for (const std::int64_t width : {1, 2, 7, 8, 33, 64, 128, 257, 432, 1000, 5000})
    check(5, 3, width, MemoryLayout::Contiguous, false);
  check(700, 4, 24, MemoryLayout::Contiguous, false);
}

TEST_P(GatedNormTest, StridesAndAliases) {
  for (const MemoryLayout layout : {MemoryLayout::Contiguous, MemoryLayout::HeadsOfPackedRows})
    for (const bool in_place : {false, true})
      for (const std::int64_t width : {8, 20, 432, 5000}) check(9, 2, width, layout, in_place);
}

class GatedNormGradientTest : public GatedNormTest {};
KINTSUGI_ON_EACH_BACKEND(GatedNormGradientTest, {DType::F64});

TEST_P(GatedNormGradientTest, Slopes) {
  const Shape shape = {7, 2, 19};
  const Values x = activations(shape.elements()), g = activations(shape.elements()),
               dy = activations(shape.elements());
  const Tensor from = in(x, type(), shape), gate = in(g, type(), shape), y = out(type(), shape),
               rstd = out(type(), {7, 2}), dx = out(type(), shape), dgate = out(type(), shape);
  backend().gated_norm_forward(y, rstd, from, gate, kEps);
  backend().gated_norm_backward(dx, dgate, in(dy, type(), shape), from, gate, rstd);
  const auto check = [&](Tensor operand, const Values& at, Tensor gradient) {
    const auto moved = [&](const Values& values) {
      write(operand, values);
      backend().gated_norm_forward(y, rstd, from, gate, kEps);
      return read(y);
    };
    const Values direction = normal(operand.elements());
    EXPECT_NEAR(slope_along(moved, at, direction, dy), dot(read(gradient), direction), 1e-8);
    write(operand, at);
  };
  check(from, x, dx);
  check(gate, g, dgate);
}

}  // namespace
}  // namespace kintsugi
