// SwiGLU and GELU.
#include <numbers>

#include "backend/operation_fixture.h"

namespace kintsugi {
namespace {

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

double silu(double x) { return x * sigmoid_of(x); }
double silu_slope(double x) { return sigmoid_of(x) * (1 + x * (1 - sigmoid_of(x))); }

const double kRoot = std::sqrt(2 / std::numbers::pi);
double gelu(double x) { return 0.5 * x * (1 + std::tanh(kRoot * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) {
  const double u = kRoot * (x + 0.044715 * x * x * x), cosine = std::cosh(u);
  return 0.5 * (1 + std::tanh(u)) + 0.5 * x / cosine / cosine * kRoot * (1 + 3 * 0.044715 * x * x);
}

class ActivationTest : public OperationTest {
 protected:
  struct Gated {
    Values out, dgate_up;
  };
  static Gated swiglu(std::int64_t rows, std::int64_t width, const Values& gate_up,
                      const Values& dout) {
    const auto n = static_cast<std::size_t>(width);
    Gated r;
    r.out.resize(dout.size());
    r.dgate_up.resize(gate_up.size());
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row)
      for (std::size_t i = 0; i < n; ++i) {
        const double gate = gate_up[row * 2 * n + i], up = gate_up[row * 2 * n + n + i],
                     d = dout[row * n + i];
        r.out[row * n + i] = silu(gate) * up;
        r.dgate_up[row * 2 * n + i] = d * up * silu_slope(gate);
        r.dgate_up[row * 2 * n + n + i] = d * silu(gate);
      }
    return r;
  }
  void check_swiglu(std::int64_t rows, std::int64_t width, const Values& gate_up) {
    SCOPED_TRACE(fmt::format("rows {} width {}", rows, width));
    const Values dout = activations(rows * width);
    const Gated expected = swiglu(rows, width, gate_up, dout);
    const Tensor from = in(gate_up, type(), {rows, 2 * width});
    const Tensor y = out(type(), {rows, width}), gradient = out(type(), {rows, 2 * width});
    backend().swiglu_forward(y, from);
    backend().swiglu_backward(gradient, in(dout, type(), {rows, width}), from);
    expect_close("out", read(y), expected.out, type(), {8, accumulator()});
    expect_close("dgate_up", read(gradient), expected.dgate_up, type(), {8, accumulator()});
    finish();
  }
  void check_gelu(std::int64_t rows, std::int64_t width, const Values& x) {
    SCOPED_TRACE(fmt::format("rows {} width {}", rows, width));
    const Values dout = activations(rows * width);
    Values expected, slopes;
    for (std::size_t i = 0; i < x.size(); ++i) {
      expected.push_back(gelu(x[i]));
      slopes.push_back(dout[i] * gelu_slope(x[i]));
    }
    const Tensor from = in(x, type(), {rows, width});
    const Tensor y = out(type(), {rows, width}), gradient = out(type(), {rows, width});
    backend().gelu_forward(y, from);
    backend().gelu_backward(gradient, in(dout, type(), {rows, width}), from);
    expect_close("out", read(y), expected, type(), {8, accumulator()});
    // 1 - tanh^2 may be a difference of nearly equal numbers, multiplied by up to 50.
    expect_close("dx", read(gradient), slopes, type(), {64, accumulator(), {largest(dout)}});
    finish();
  }
};
KINTSUGI_ON_EACH_BACKEND(ActivationTest);

constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {
    {1, 1}, {1, 7}, {2, 3}, {17, 64}, {65, 33}, {3, 1001}, {130, 130}};

TEST_P(ActivationTest, Swiglu) {
  for (const auto& [rows, width] : kShapes)
    check_swiglu(rows, width, activations(rows * 2 * width, 2.0));
}

TEST_P(ActivationTest, Gelu) {
  for (const auto& [rows, width] : kShapes) check_gelu(rows, width, activations(rows * width, 2.0));
}

// Far from zero the exponentials overflow in fp32: the functions must be 0 or the identity there,
// not NaN.
TEST_P(ActivationTest, FarFromZero) {
  Values x = {0, -0.0, 10, -10, 40, -40, 89, -89, 200, -200, 3000, -3000};
  check_gelu(1, 12, rounded(x, type()));
  for (int i = 0; i < 12; ++i) x.push_back(1.5);
  check_swiglu(1, 12, rounded(x, type()));
}

class ActivationGradientTest : public ActivationTest {};
KINTSUGI_ON_EACH_BACKEND(ActivationGradientTest, {DType::F64});

TEST_P(ActivationGradientTest, Swiglu) {
  const Values x = normal(5 * 22), dout = normal(5 * 11), direction = normal(5 * 22);
  const Tensor from = in(x, type(), {5, 22}), y = out(type(), {5, 11}),
               gradient = out(type(), {5, 22});
  backend().swiglu_backward(gradient, in(dout, type(), {5, 11}), from);
  const auto forward = [&](const Values& moved) {
    write(from, moved);
    backend().swiglu_forward(y, from);
    return read(y);
  };
  EXPECT_NEAR(slope_along(forward, x, direction, dout), dot(read(gradient), direction), 1e-8);
}

TEST_P(ActivationGradientTest, Gelu) {
  const Values x = normal(5 * 11), dout = normal(5 * 11), direction = normal(5 * 11);
  const Tensor from = in(x, type(), {5, 11}), y = out(type(), {5, 11}),
               gradient = out(type(), {5, 11});
  backend().gelu_backward(gradient, in(dout, type(), {5, 11}), from);
  const auto forward = [&](const Values& moved) {
    write(from, moved);
    backend().gelu_forward(y, from);
    return read(y);
  };
  EXPECT_NEAR(slope_along(forward, x, direction, dout), dot(read(gradient), direction), 1e-8);
}

}  // namespace
}  // namespace kintsugi
