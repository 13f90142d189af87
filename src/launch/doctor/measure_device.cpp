#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "core/hash.h"
#include "core/units.h"
#include "launch/doctor/measure.h"
#include "tensor/arena.h"
#include "tensor/dtype.h"

namespace kintsugi {
namespace {

constexpr double kScale = 1.0 / 64;  // keeps the result in the range of fp16

// ±1 and ±2 by row; rows that are near each other differ.
double row_factor(std::int64_t row) {
  const std::int64_t number = (row * 7 + row / 16) % 4;
  return (number % 2 == 0 ? 1.0 : -1.0) * (number < 2 ? 1.0 : 2.0);
}
double left_value(std::int64_t row, std::int64_t k) {
  return row_factor(row) * static_cast<double>(1 + k % 4);
}
double right_value(std::int64_t row, std::int64_t k) {
  return row_factor(row + 1) * static_cast<double>(1 + 3 * k % 4);
}
// Four neighbouring k give 1 · 1 + 2 · 4 + 3 · 3 + 4 · 2 = 26. All sums are integers below 2^24,
// and the result is 13 times a power of two: no precision rounds it.
double exact_result(std::int64_t row, std::int64_t column, std::int64_t depth) {
  const double sum = 26.0 * (static_cast<double>(depth) / 4);
  return kScale * sum * row_factor(row) * row_factor(column + 1);
}

template <class Value>
void upload_matrix(Backend& backend, Tensor x, Value&& value) {
  const std::int64_t rows = x.extent(0), columns = x.extent(1);
  std::vector<double> values(static_cast<std::size_t>(rows * columns));
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column)
      values[static_cast<std::size_t>(row * columns + column)] = value(row, column);
  std::vector<std::byte> stored(x.bytes());
  from_doubles(values, x.dtype(), stored.data());
  backend.upload(x, stored.data());
}

void check_matmul(Backend& backend, const DeviceLoad& load, const SecondsClock& now,
                  DeviceFacts& facts) {
  const std::int64_t n = load.size, depth = load.depth;
  Arena arena(backend);
  const auto matrix = [&](std::int64_t columns) {
    return arena.allocate(Region::Workspace, "doctor", load.precision, {n, columns});
  };
  const Tensor a = matrix(depth), b = matrix(depth), c = matrix(n);
  upload_matrix(backend, a, left_value);
  upload_matrix(backend, b, right_value);
  const MatmulOptions options{.transpose_b = true, .scale = kScale};
  backend.matmul(c, a, b, options);  // not timed: may choose an algorithm
  backend.synchronize();
  double best = 0;
  for (int i = 0; i < load.repetitions; ++i) {
    const double begin = now();
    backend.matmul(c, a, b, options);
    backend.synchronize();
    const double seconds = std::max(now() - begin, 1e-9);
    best = i == 0 ? seconds : std::min(best, seconds);
  }
  const double size = static_cast<double>(n);
  if (best > 0) facts.flops_per_s = 2 * size * size * static_cast<double>(depth) / best;
  std::vector<std::byte> stored(c.bytes());
  backend.download(stored.data(), c);
  facts.hash = hex64(hash64(stored.data(), stored.size()));
  std::vector<double> values(static_cast<std::size_t>(n * n));
  to_doubles(stored.data(), load.precision, values);
  for (std::int64_t i = 0; i < n * n; ++i) {
    const double value = values[static_cast<std::size_t>(i)],
                 exact = exact_result(i / n, i % n, depth);
    if (value == exact) continue;
    facts.problem =
        fmt::format("computes wrong results: element ({}, {}) of a {} matmul is {}, not {}", i / n,
                    i % n, to_string(load.precision), value, exact);
    return;
  }
}

// Each word depends on its position, so that a wrong address is noticed, and the second pattern has
// all bits inverted.
void check_device_memory(Backend& backend, std::int64_t bytes, DeviceFacts& facts) {
  constexpr std::int64_t kBlock = 4 << 20;
  const std::int64_t block = std::min(bytes, kBlock) / 8 * 8;  // whole words
  if (block == 0) return;
  const std::int64_t blocks = bytes / block;
  const auto words = static_cast<std::size_t>(block / 8);
  Arena arena(backend);
  const Tensor memory = arena.allocate(Region::Workspace, "doctor", DType::U8, {blocks, block});
  std::vector<std::uint64_t> written(words), read(words);
  for (const std::uint64_t flip : {std::uint64_t{0}, ~std::uint64_t{0}}) {
    const auto fill = [&](std::int64_t number) {
      for (std::size_t i = 0; i < words; ++i)
        written[i] =
            ((static_cast<std::uint64_t>(number) * words + i) * 0x9E3779B97F4A7C15u) ^ flip;
    };
    for (std::int64_t number = 0; number < blocks; ++number) {
      fill(number);
      backend.upload(memory.rows(number, 1), written.data());
    }
    for (std::int64_t number = 0; number < blocks; ++number) {
      fill(number);
      backend.download(read.data(), memory.rows(number, 1));
      if (std::memcmp(read.data(), written.data(), words * 8) == 0) continue;
      facts.problem =
          fmt::format("its memory is damaged: byte block {} of {} does not hold what was written",
                      number, blocks);
      return;
    }
  }
}

}  // namespace

double steady_seconds() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

DeviceFacts measure_device(Backend& backend, const DeviceLoad& load, const SecondsClock& now) {
  DeviceFacts facts;
  try {
    facts.name = backend.description();
    facts.free_bytes = static_cast<double>(backend.available_bytes());
    check_matmul(backend, load, now, facts);
    if (facts.problem.empty()) check_device_memory(backend, load.memory_bytes, facts);
  } catch (const std::exception& error) {
    facts.problem = fmt::format("its device does not work: {}", error.what());
  }
  return facts;
}

}  // namespace kintsugi
