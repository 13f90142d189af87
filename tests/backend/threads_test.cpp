// The CPU backend gives bit-identical results with any number of threads.
#include <gtest/gtest.h>

#include <random>

#include "backend/cpu/cpu_backend.h"
#include "backend/retention.h"

namespace kintsugi {
namespace {

class CpuThreadsTest : public ::testing::Test {
 protected:
  static std::vector<float> numbers(std::int64_t count) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = normal(random);
    return values;
  }
  static Tensor of(std::vector<float>& values, Shape shape) {
    return Tensor(values.data(), DType::F32, shape);
  }

  // The results of all operations that sum over tokens.
  static std::vector<float> sums(int threads) {
    const std::int64_t rows = 263, width = 37, vocabulary = 11;
    const std::unique_ptr<Backend> backend = make_cpu_backend(threads);
    std::vector<float> x = numbers(rows * width), dy = numbers(rows * width), weight(width, 1.5f),
                       bias(width, 0.5f);
    std::vector<float> y(x.size()), dx(x.size()), mean(rows), rstd(rows),
        result(7 * width + vocabulary * width + 2);
    std::vector<std::int32_t> ids(rows);
    for (std::int64_t i = 0; i < rows; ++i)
      ids[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * i % vocabulary);
    const Shape matrix = {rows, width};
    const Tensor all = of(result, {static_cast<std::int64_t>(result.size())});
    const auto column = [&](std::int64_t i) { return all.part(0, i * width, width); };
    backend->bias_backward(column(0), of(dy, matrix));
    backend->rms_norm_forward(of(y, matrix), of(rstd, {rows}), of(x, matrix), of(weight, {width}),
                              1e-5);
    backend->rms_norm_backward(of(dx, matrix), column(1), of(dy, matrix), of(x, matrix),
                               of(weight, {width}), of(rstd, {rows}));
    backend->layer_norm_forward(of(y, matrix), of(mean, {rows}), of(rstd, {rows}), of(x, matrix),
                                of(weight, {width}), of(bias, {width}), 1e-5);
    backend->layer_norm_backward(of(dx, matrix), column(2), column(3), of(dy, matrix),
                                 of(x, matrix), of(weight, {width}), of(mean, {rows}),
                                 of(rstd, {rows}));
    backend->embedding_backward(
        all.part(0, 7 * width, vocabulary * width).view({vocabulary, width}),
        Tensor(ids.data(), DType::I32, {rows}), of(dy, matrix));
    std::vector<float> many = numbers(200003);
    const std::int64_t end = static_cast<std::int64_t>(result.size());
    backend->sum(all.part(0, end - 2, 1), of(many, {200003}));
    backend->squared_norm(all.part(0, end - 1, 1), of(many, {200003}));
    return result;
  }
};

TEST_F(CpuThreadsTest, SumsDoNotDependOnTheirNumber) {
  const std::vector<float> alone = sums(1);
  for (const int threads : {2, 3, 5, 8}) EXPECT_EQ(sums(threads), alone) << threads << " threads";
}

TEST_F(CpuThreadsTest, MoreThreadsThanWork) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(9);
  std::vector<float> a = {2}, b = {3}, c = {-1};
  backend->matmul(of(c, {1, 1}), of(a, {1, 1}), of(b, {1, 1}));
  EXPECT_EQ(c[0], 6.0f);
  backend->add(of(c, {1}), of(a, {1}));
  EXPECT_EQ(c[0], 8.0f);
}

TEST_F(CpuThreadsTest, RetentionDoesNotDependOnTheirNumber) {
  const RetentionSizes n = {2, 75, 3, 8, 12, 16};
  std::vector<float> qk = numbers(2 * 75 * 3 * 8), vd = numbers(2 * 75 * 3 * 12),
                     decays = {0.9f, 0.96875f, 0.984375f};
  const auto results = [&](int threads) {
    const std::unique_ptr<Backend> backend = make_cpu_backend(threads);
    std::vector<float> result(qk.size() + 2 * vd.size());
    std::vector<std::byte> memory(retention_workspace_bytes(DType::F32, n, true));
    const Tensor workspace(memory.data(), DType::U8, {static_cast<std::int64_t>(memory.size())});
    const Shape keys = {2, 75, 3, 8}, values = {2, 75, 3, 12};
    const Tensor q = of(qk, keys), v = of(vd, values), dq(result.data(), DType::F32, keys),
                 out(result.data() + qk.size(), DType::F32, values),
                 dv(result.data() + qk.size() + vd.size(), DType::F32, values);
    std::vector<float> rest(qk.size());
    const RetentionOptions o = {.scale = 0.3, .decays = of(decays, {3}), .chunk = n.chunk};
    backend->retention_forward(out, q, q, v, {}, workspace, o);
    backend->retention_backward(dq, of(rest, keys), dv, v, q, q, v, {}, {}, workspace, o);
    return result;
  };
  const std::vector<float> one = results(1);
  for (const int threads : {2, 3, 8}) EXPECT_EQ(results(threads), one) << threads;
}

}  // namespace
}  // namespace kintsugi
