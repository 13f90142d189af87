#include "core/step_scalars.h"

#include <algorithm>

#include "core/error.h"

namespace kintsugi {

double value_of(const ScalarValues& values, std::string_view key) {
  const auto found = std::ranges::find_if(
      values, [&](const ScalarValue& one) { return one.of->names.json == key; });
  KINTSUGI_CHECK(found != values.end(), "the step has no {}", key);
  return found->value;
}

std::size_t StepScalars::add(DeclaredScalar scalar) {
  scalar.sum = sums_;
  named_.push_back(std::make_shared<const DeclaredScalar>(std::move(scalar)));
  return sums_++;
}

void StepScalars::add_difference(DeclaredScalar scalar, std::size_t of, std::size_t minus) {
  scalar.sum = of;
  scalar.minus = minus;
  named_.push_back(std::make_shared<const DeclaredScalar>(std::move(scalar)));
}

ScalarValues StepScalars::values(std::span<const double> sums, double targets) const {
  ScalarValues values;
  for (const auto& one : named_) {
    double value = one->factor * sums[one->sum] / targets;
    if (one->minus) value -= one->factor * sums[*one->minus] / targets;
    values.push_back({one, value});
  }
  return values;
}

}  // namespace kintsugi
