#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/backends.h"

namespace kintsugi {

using Values = std::vector<double>;
using Ids = std::vector<std::int32_t>;

// Half the distance between 1 and the next number: the largest relative error of rounding once.
inline double unit_roundoff(DType type) {
  switch (type) {
    case DType::F64:
      return 0x1p-53;
    case DType::F32:
      return 0x1p-24;
    case DType::BF16:
      return 0x1p-8;
    default:
      return 0x1p-11;
  }
}

// ---- numbers on the host
inline std::vector<std::byte> encode(const Values& values, DType type) {
  std::vector<std::byte> bytes(values.size() * size_of(type));
  visit_float(type, [&]<class T>() {
    T* out = reinterpret_cast<T*>(bytes.data());
    for (std::size_t i = 0; i < values.size(); ++i)
      out[i] = static_cast<T>(static_cast<Accumulator<T>>(values[i]));
  });
  return bytes;
}

inline double decode(const std::byte* bytes, DType type) {
  return visit_float(type, [&]<class T>() -> double {
    return static_cast<double>(static_cast<Accumulator<T>>(*reinterpret_cast<const T*>(bytes)));
  });
}

// The values rounded to a type, as a tensor of this type stores them. References are computed from
// these.
inline Values rounded(const Values& values, DType type) {
  const std::vector<std::byte> bytes = encode(values, type);
  Values result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    result[i] = decode(&bytes[i * size_of(type)], type);
  return result;
}

inline Values magnitudes(Values values) {
  for (double& value : values) value = std::abs(value);
  return values;
}

inline double largest(const Values& values) {
  double result = 0;
  for (const double value : values) result = std::max(result, std::abs(value));
  return result;
}

inline double dot(const Values& a, const Values& b) {
  double total = 0;
  for (std::size_t i = 0; i < a.size(); ++i) total += a[i] * b[i];
  return total;
}

// The allowed error of a result: its own rounding, plus `rounds` roundings in the type of the
// arithmetic (`work`) of numbers as large as `size` (default: the largest expected number).
struct Bound {
  double rounds = 8;
  DType work = DType::F32;
  Values size = {};
  Values lost = {};  // more that each result may lack
};

inline void expect_close(const std::string& what, const Values& actual, const Values& expected,
                         DType stored, const Bound& bound) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  const double everywhere = bound.size.size() == 1 ? bound.size[0] : largest(expected);
  // Below its smallest normal number fp16 has only an absolute precision.
  const double floor = stored == DType::F16 ? 0x1p-25 : 0;
  double worst = -1;
  std::size_t where = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double size = bound.size.size() > 1 ? bound.size[i] : everywhere;
    const double allowed = 1.01 * unit_roundoff(stored) * std::abs(expected[i]) +
                           bound.rounds * unit_roundoff(bound.work) * size + floor +
                           (bound.lost.empty() ? 0 : bound.lost[i]);
    const double error = std::abs(actual[i] - expected[i]);
    const double ratio = std::isnan(error) ? INFINITY : error == 0 ? 0 : error / allowed;
    if (ratio > worst) worst = ratio, where = i;
  }
  EXPECT_LE(worst, 1.0) << what << ": element " << where << " of " << actual.size() << " is "
                        << actual[where] << ", expected " << expected[where];
}

// d/dt <cotangent, f(x + t * direction)> at t = 0, by a five-point formula of fourth order.
inline double slope_along(const std::function<Values(const Values&)>& f, const Values& x,
                          const Values& direction, const Values& cotangent, double step = 1e-3) {
  const auto at = [&](double t) {
    Values moved = x;
    for (std::size_t i = 0; i < x.size(); ++i) moved[i] += t * direction[i];
    return dot(cotangent, f(moved));
  };
  return (at(-2 * step) - 8 * at(-step) + 8 * at(step) - at(2 * step)) / (12 * step);
}

// A test of one operation on one backend and in one precision. Every tensor is filled with NaN and
// has guard bytes before and after it. finish() checks that no byte has changed that the test has
// not declared writable by allow().
class OperationTest : public ::testing::TestWithParam<Setting> {
 protected:
  Backend& backend() {
    static std::map<std::string, std::unique_ptr<Backend>> backends;
    const TestBackend& wanted = GetParam().backend;
    std::unique_ptr<Backend>& backend = backends[wanted.name + " " + wanted.variant];
    if (!backend) backend = wanted.make();
    return *backend;
  }
  DType type() const { return GetParam().type; }
  DType accumulator() const { return accumulator_of(type()); }
  // Whether the matrix units of this GPU may take a number for zero: MI250X's do if it is less than
  // the smallest normal one.
  bool may_be_lost(double x) const {
    return GetParam().backend.name == "hip" && type() == DType::F16 && std::abs(x) < 0x1p-14;
  }
  bool narrow() const { return type() == DType::BF16 || type() == DType::F16; }

  Values normal(std::int64_t count, double deviation = 1.0, double mean = 0.0) {
    std::normal_distribution<double> distribution(mean, deviation);
    Values values(static_cast<std::size_t>(count));
    for (double& value : values) value = distribution(random_);
    return values;
  }
  // Normally distributed numbers, rounded to this test's type.
  Values activations(std::int64_t count, double deviation = 1.0, double mean = 0.0) {
    return rounded(normal(count, deviation, mean), type());
  }
  Ids integers(std::int64_t count, std::int32_t low, std::int32_t high) {
    std::uniform_int_distribution<std::int32_t> distribution(low, high);
    Ids ids(static_cast<std::size_t>(count));
    for (std::int32_t& id : ids) id = distribution(random_);
    return ids;
  }

  // ---- memory
  // A buffer filled with NaN, not writable. Views of it become operands.
  Tensor buffer(DType dtype, Shape shape) {
    Allocation allocation;
    const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
    allocation.size = bytes + 2 * kGuard;
    allocation.address = backend().allocate(allocation.size);
    allocation.initial.assign(allocation.size,
                              std::byte{0xFF});  // a NaN in every format, -1 in integers
    allocation.writable.assign(allocation.size, false);
    backend().upload(allocation.whole(), allocation.initial.data());
    allocations_.push_back(std::move(allocation));
    return Tensor(static_cast<std::byte*>(allocations_.back().address) + kGuard, dtype, shape);
  }
  void write(Tensor view, const Values& values) {
    ASSERT_EQ(view.elements(), static_cast<std::int64_t>(values.size()));
    store(view, encode(values, view.dtype()));
  }
  Tensor allow(Tensor view) {
    Allocation& owner = owner_of(view);
    for (const std::size_t offset : offsets(view, owner))
      std::fill_n(owner.writable.begin() + static_cast<std::ptrdiff_t>(offset),
                  size_of(view.dtype()), true);
    return view;
  }
  Values read(Tensor view) {
    const Allocation& owner = owner_of(view);
    std::vector<std::byte> bytes(owner.size);
    backend().download(bytes.data(), owner.whole());
    Values values;
    for (const std::size_t offset : offsets(view, owner))
      values.push_back(decode(&bytes[offset], view.dtype()));
    return values;
  }

  Tensor in(const Values& values, DType dtype, Shape shape) {
    const Tensor view = buffer(dtype, shape);
    write(view, values);
    return view;
  }
  Tensor in(const Ids& ids, Shape shape) {
    const Tensor view = buffer(DType::I32, shape);
    const std::byte* bytes = reinterpret_cast<const std::byte*>(ids.data());
    store(view, {bytes, bytes + ids.size() * sizeof(std::int32_t)});
    return view;
  }
  Tensor out(DType dtype, Shape shape) { return allow(buffer(dtype, shape)); }
  Tensor inout(const Values& values, DType dtype, Shape shape) {
    return allow(in(values, dtype, shape));
  }
  // Columns [skip, skip + width) of a wider matrix.
  Tensor inside(DType dtype, std::int64_t rows, std::int64_t width, std::int64_t skip,
                std::int64_t rest) {
    return buffer(dtype, {rows, skip + width + rest}).part(1, skip, width);
  }

  // Checks that only writable bytes have changed, and frees everything. Called after each case of a
  // test.
  void finish() {
    for (const Allocation& allocation : allocations_) {
      std::vector<std::byte> now(allocation.size);
      backend().download(now.data(), allocation.whole());
      std::size_t changed = 0, first = 0;
      for (std::size_t i = allocation.size; i-- > 0;)
        if (!allocation.writable[i] && now[i] != allocation.initial[i]) ++changed, first = i;
      EXPECT_EQ(changed, 0u) << "bytes were written outside the result, the first at " << first
                             << " of " << allocation.size << " (" << kGuard
                             << " of them are a guard at each end)";
      backend().release(allocation.address, allocation.size);
    }
    allocations_.clear();
  }
  void TearDown() override { finish(); }

 private:
  static constexpr std::size_t kGuard = 256;

  struct Allocation {
    void* address = nullptr;
    std::size_t size = 0;  // bytes, with both guards
    std::vector<std::byte> initial;
    std::vector<bool> writable;
    Tensor whole() const { return Tensor(address, DType::U8, {static_cast<std::int64_t>(size)}); }
  };

  Allocation& owner_of(Tensor view) {
    const auto address = reinterpret_cast<std::uintptr_t>(view.data());
    for (Allocation& allocation : allocations_) {
      const auto begin = reinterpret_cast<std::uintptr_t>(allocation.address);
      if (address >= begin && address < begin + allocation.size) return allocation;
    }
    failure("this test has not created the tensor");
  }

  static std::vector<std::size_t> offsets(Tensor view, const Allocation& owner) {
    const std::size_t base = reinterpret_cast<std::uintptr_t>(view.data()) -
                             reinterpret_cast<std::uintptr_t>(owner.address);
    std::vector<std::size_t> result = {base};
    for (int i = 0; i < view.rank(); ++i) {
      std::vector<std::size_t> next;
      next.reserve(result.size() * static_cast<std::size_t>(view.extent(i)));
      for (const std::size_t offset : result)
        for (std::int64_t j = 0; j < view.extent(i); ++j)
          next.push_back(offset +
                         static_cast<std::size_t>(j * view.stride(i)) * size_of(view.dtype()));
      result = std::move(next);
    }
    return result;
  }

  void store(Tensor view, const std::vector<std::byte>& bytes) {
    Allocation& owner = owner_of(view);
    std::vector<std::byte> now(owner.size);
    backend().download(now.data(), owner.whole());
    const std::size_t size = size_of(view.dtype());
    std::size_t from = 0;
    for (const std::size_t offset : offsets(view, owner)) {
      std::copy_n(&bytes[from], size, &now[offset]);
      std::copy_n(&bytes[from], size, &owner.initial[offset]);
      from += size;
    }
    backend().upload(owner.whole(), now.data());
  }

  std::mt19937_64 random_{20240607};
  std::vector<Allocation> allocations_;
};

inline std::string setting_name(const ::testing::TestParamInfo<Setting>& info) {
  return info.param.backend.name + "_" + std::string(to_string(info.param.type));
}

}  // namespace kintsugi

// Runs every test of the suite on each backend, in all its precisions or in the given ones.
#define KINTSUGI_ON_EACH_BACKEND(suite, ...)                                            \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, ::testing::ValuesIn(settings(__VA_ARGS__)), \
                           setting_name)
