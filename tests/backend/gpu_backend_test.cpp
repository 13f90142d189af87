// Properties of the GPU backend alone. The operation tests in this folder run on it, too.
#include "backend/gpu/gpu_backend.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <vector>

#include "backend/cpu/cpu_backend.h"

namespace kintsugi {
namespace {

TEST(GpuDeviceTest, MissingDeviceIsAUserError) {
  EXPECT_THROW(make_gpu_backend({.device = 1000}), UserError);
  EXPECT_THROW(make_gpu_backend({.device = -1}), UserError);
  EXPECT_EQ(gpu_devices().size(), static_cast<std::size_t>(gpu_device_count()));
}

// fp32 tensors of one backend, filled from a generator that is the same for every backend.
class Bench {
 public:
  explicit Bench(Backend& backend) : backend_(backend), arena_(backend) {}

  Tensor values(Shape shape) {
    std::normal_distribution<float> normal;
    std::vector<float> host(static_cast<std::size_t>(shape.elements()));
    for (float& x : host) x = normal(random_);
    return put(DType::F32, shape, host.data());
  }
  Tensor ids(std::int64_t count, std::int32_t below) {
    std::vector<std::int32_t> host(static_cast<std::size_t>(count));
    for (std::int32_t& x : host)
      x = static_cast<std::int32_t>(random_() % static_cast<std::uint32_t>(below));
    return put(DType::I32, {count}, host.data());
  }
  std::vector<float> read(Tensor x) {
    std::vector<float> host(static_cast<std::size_t>(x.elements()));
    backend_.download(host.data(), x);
    return host;
  }

 private:
  Tensor put(DType dtype, Shape shape, const void* host) {
    const Tensor x = arena_.allocate(Region::Workspace, "test", dtype, shape);
    backend_.upload(x, host);
    return x;
  }
  Backend& backend_;
  Arena arena_;
  std::mt19937 random_{7};
};

class GpuBackendTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpu_device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(GpuBackendTest, DropsWhatTheCpuBackendDrops) {
  for (const std::int64_t width : {48, 13}) {
    const auto mask = [&](Backend& backend) {
      Bench bench(backend);
      const Tensor x = bench.values({37, width});
      backend.fill(x, 1.0);
      backend.dropout(x, x,
                      {.probability = 0.1, .key = 0x9E3779B97F4A7C15ull, .first_row = 123456789});
      return bench.read(x);
    };
    EXPECT_EQ(mask(*make_gpu_backend()), mask(*make_cpu_backend()));
  }
}

TEST_F(GpuBackendTest, SumsRepeatBitForBit) {
  const auto run = [](Backend& backend) {
    Bench bench(backend);
    const std::int64_t rows = 3000, width = 520;
    const Tensor x = bench.values({rows, width}), dy = bench.values({rows, width}),
                 w = bench.values({width});
    const Tensor rstd = bench.values({rows}), mean = bench.values({rows}),
                 y = bench.values({rows, width});
    const Tensor dw = bench.values({width}), db = bench.values({width}),
                 table = bench.values({50, width});
    backend.layer_norm_forward(y, mean, rstd, x, w, w, 1e-5);
    backend.layer_norm_backward(y, dw, db, dy, x, w, mean, rstd);
    backend.bias_backward(db, dy);
    backend.embedding_backward(table, bench.ids(rows, 50), dy);
    const Tensor sum = bench.values({1});
    backend.squared_norm(sum, table);
    std::vector<float> all = bench.read(y);
    for (const Tensor& part : {dw, db, table, sum})
      for (const float value : bench.read(part)) all.push_back(value);
    return all;
  };
  const auto backend = make_gpu_backend();
  const std::vector<float> first = run(*backend);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(run(*backend), first);
}

// Timing the algorithms must not change the operands, and the next process must use the stored
// results.
TEST_F(GpuBackendTest, TuningChangesNoResult) {
  const std::filesystem::path cache =
      std::filesystem::path(::testing::TempDir()) / "cuda_tuning.txt";
  std::filesystem::remove(cache);
  const auto run = [](Backend& backend) {
    Bench bench(backend);
    const Tensor a = bench.values({96, 200}), b = bench.values({200, 64}),
                 c = bench.values({96, 64});
    const Tensor residual = bench.values({96, 64});
    backend.matmul(c, a, b, {.accumulate = true});
    backend.matmul(residual, a, b, {.residual = residual});
    std::vector<float> all = bench.read(c);
    for (const float value : bench.read(residual)) all.push_back(value);
    return all;
  };
  const std::vector<float> expected = run(*make_cpu_backend());
  const std::vector<float> tuned = run(*make_gpu_backend({.matmul_cache = cache.string()}));
  const std::vector<float> again = run(*make_gpu_backend({.matmul_cache = cache.string()}));
  ASSERT_EQ(tuned.size(), expected.size());
  for (std::size_t i = 0; i < tuned.size(); ++i) ASSERT_NEAR(tuned[i], expected[i], 1e-3) << i;
  EXPECT_EQ(tuned, again);
  EXPECT_TRUE(std::filesystem::exists(cache));
  std::filesystem::remove(cache);
}

}  // namespace
}  // namespace kintsugi
