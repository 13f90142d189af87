#include <bit>
#include <numbers>

#include "backend/operation_fixture.h"
#include "core/philox.h"

namespace kintsugi {
namespace {

// The reference for element i. It must never change: initial weights are reproducible across
// versions and machines.
double drawn(const DrawOptions& options, std::int64_t i) {
  const Philox::Block words = Philox::draw(options.key, static_cast<std::uint64_t>(i) / 2);
  if (options.distribution == Distribution::Uniform)
    return options.scale *
           (static_cast<double>(words[static_cast<std::size_t>(i % 2)]) * 0x1.0p-31 - 1.0);
  const double u1 = (static_cast<double>(words[0]) + 1.0) * 0x1.0p-32,
               u2 = static_cast<double>(words[1]) * 0x1.0p-32;
  const double radius = std::sqrt(-2.0 * std::log(u1)), angle = 2.0 * std::numbers::pi * u2;
  return options.scale * (radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle)));
}

Values drawn(const DrawOptions& options, std::int64_t rows, std::int64_t width) {
  Values values;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < width; ++i)
      values.push_back(drawn(options, options.first + row * options.row_stride + i));
  return values;
}

class DrawTest : public OperationTest {
 protected:
  // The CPU must agree bit for bit; other devices may round log, sin and cos in double differently.
  void expect_drawn(const Values& actual, const DrawOptions& options, std::int64_t rows,
                    std::int64_t width) {
    const Values exact = drawn(options, rows, width);
    if (GetParam().backend.name == "cpu")
      EXPECT_EQ(actual, rounded(exact, type()));
    else
      expect_close("draws", actual, exact, type(), {.rounds = 8, .work = DType::F64});
  }
};
KINTSUGI_ON_EACH_BACKEND(DrawTest);

TEST_P(DrawTest, AnyRangeOfElements) {
  for (const Distribution distribution : {Distribution::Normal, Distribution::Uniform})
    for (const std::int64_t first : {std::int64_t{0}, std::int64_t{1}, std::int64_t{12345},
                                     (std::int64_t{1} << 33) + 7, (std::int64_t{1} << 33) + 8})
      for (const std::int64_t count : {1, 2, 3, 255, 9001}) {
        SCOPED_TRACE(testing::Message() << count << " from " << first);
        const DrawOptions options{
            .distribution = distribution, .scale = 0.02, .key = derive_key(3, 99), .first = first};
        const Tensor x = out(type(), {1, count});
        backend().draw(x, options);
        expect_drawn(read(x), options, 1, count);
        finish();
      }
}

// A shard of columns of a matrix: odd widths and distances shift the pairs from row to row.
TEST_P(DrawTest, RowsOfAWiderMatrix) {
  for (const std::int64_t width : {1, 2, 5, 64, 301})
    for (const std::int64_t distance : {std::int64_t{7}, std::int64_t{512}})
      for (const std::int64_t skip : {0, 3}) {
        SCOPED_TRACE(testing::Message() << width << " of " << distance);
        const DrawOptions options{
            .scale = 3.0, .key = derive_key(1, 2), .first = skip, .row_stride = distance};
        const Tensor x = allow(inside(type(), 37, width, 3, 2));
        backend().draw(x, options);
        expect_drawn(read(x), options, 37, width);
        finish();
      }
}

TEST_P(DrawTest, NothingToDraw) {
  backend().draw(out(type(), {1, 4}).part(1, 0, 0), {});
  backend().draw(out(type(), {4, 4}).rows(0, 0), {});
}

// The master weights of an offloaded optimizer, with more elements than the device draws at a time.
TEST_P(DrawTest, InHostMemory) {
  if (type() != DType::F32) GTEST_SKIP() << "the copy to the host is the same for all types";
  const std::int64_t count = (std::int64_t{9} << 20) + 3;
  Arena arena(backend());
  const Tensor host = arena.allocate(Region::Optimizer, "test", type(), {1, count}, Side::Host);
  const Tensor device = arena.allocate(Region::Optimizer, "test", type(), {1, count});
  const DrawOptions options{.scale = 0.02, .key = 5, .first = 1};
  backend().fill(host, 7.0);
  backend().draw(host, options);
  backend().draw(device, options);
  std::vector<float> expected(static_cast<std::size_t>(count));
  backend().download(expected.data(), device);
  const std::vector<float> actual(host.as<float>(), host.as<float>() + count);
  EXPECT_EQ(actual, expected);
  // Rows of a wider matrix; the elements between them must not change.
  const Tensor rows = host.view({count}).rows(0, 300 * 50).view({300, 50});
  backend().fill(host, 7.0);
  backend().draw(rows.part(1, 10, 31), {.scale = 0.02, .key = 5, .first = 1, .row_stride = 31});
  for (std::int64_t row = 0; row < 300; ++row)
    for (std::int64_t i = 0; i < 50; ++i)
      ASSERT_EQ(host.as<float>()[row * 50 + i],
                i < 10 || i >= 41 ? 7.0f : expected[static_cast<std::size_t>(row * 31 + i - 10)])
          << row << ", " << i;
}

// A GPU's log, sin and cos sometimes differ from the host's by an ulp of double. This changes the
// last bit of a float about once in 10^8 draws.
TEST(DrawOnTwoDevices, AreTheSameToTheLastBit) {
  if (gpu_device_count() == 0) GTEST_SKIP() << "no GPU";
  constexpr std::int64_t kCount = (std::int64_t{16} << 20) + 5;
  const DrawOptions options{.scale = 0.02, .key = derive_key(1, 77), .first = 12345};
  const auto draws_of = [&](Backend& backend) {
    Arena arena(backend);
    const Tensor x = arena.allocate(Region::Weights, "test", DType::F32, {1, kCount});
    backend.draw(x, options);
    std::vector<float> values(static_cast<std::size_t>(kCount));
    backend.download(values.data(), x);
    return values;
  };
  const std::vector<float> cpu = draws_of(*make_cpu_backend()),
                           cuda = draws_of(*make_gpu_backend({}));
  int different = 0;
  for (std::size_t i = 0; i < cpu.size(); ++i) {
    if (cpu[i] == cuda[i]) continue;
    ++different;
    EXPECT_EQ(std::nextafter(cpu[i], cuda[i]), cuda[i]) << i;
  }
  EXPECT_LE(different, 5);
}

// Checks mean, variance and tails of a million draws.
TEST_P(DrawTest, IsNormal) {
  if (narrow()) GTEST_SKIP() << "16 bits are too coarse for these statistics";
  constexpr std::int64_t kCount = 1 << 20;
  const Tensor x = out(type(), {1, kCount});
  backend().draw(x, {.scale = 0.5, .key = 11});
  double sum = 0, squares = 0;
  int beyond = 0;  // two standard deviations
  for (const double value : read(x)) {
    sum += value;
    squares += value * value;
    beyond += std::abs(value) > 1.0 ? 1 : 0;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.003);
  EXPECT_NEAR(squares / kCount, 0.25, 0.002);
  EXPECT_NEAR(static_cast<double>(beyond) / kCount, 0.0455, 0.001);
}

}  // namespace
}  // namespace kintsugi
