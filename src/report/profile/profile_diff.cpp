#include "report/profile/profile_diff.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

namespace kintsugi {
namespace {

constexpr double kSmallOfOperation = 0.02, kSmallOfStep = 0.0005;

ChangeKind kind_of(const OperationChange& change, double step_s) {
  if (change.calls_before == 0) return ChangeKind::Added;
  if (change.calls_after == 0) return ChangeKind::Removed;
  if (std::abs(change.delta_s()) <=
      std::max(kSmallOfOperation * change.before_s, kSmallOfStep * step_s))
    return ChangeKind::Unchanged;
  return change.delta_s() > 0 ? ChangeKind::Slower : ChangeKind::Faster;
}

std::string relative(double before, double after) {
  return before > 0 ? fmt::format(" ({:+.1f} %)", 100 * (after - before) / before) : "";
}

}  // namespace

std::string_view to_string(ChangeKind kind) {
  switch (kind) {
    case ChangeKind::Slower:
      return "slower";
    case ChangeKind::Faster:
      return "faster";
    case ChangeKind::Added:
      return "added";
    case ChangeKind::Removed:
      return "removed";
    case ChangeKind::Unchanged:
      return "unchanged";
  }
  return "?";
}

std::string ProfileDiff::headline() const {
  const OperationChange* worst = nullptr;
  for (const OperationChange& one : operations) {
    const bool costs = one.kind == ChangeKind::Slower || one.kind == ChangeKind::Added;
    if (costs && (worst == nullptr || one.delta_s() > worst->delta_s())) worst = &one;
  }
  const std::string step = fmt::format("a step takes {:.3f} ms instead of {:.3f} ms{}",
                                       1e3 * after_s, 1e3 * before_s, relative(before_s, after_s));
  if (worst == nullptr) return "no operation got slower; " + step;
  return fmt::format("{} got slower the most: {:+.3f} ms per step{}; {}", worst->name,
                     1e3 * worst->delta_s(), relative(worst->before_s, worst->after_s), step);
}

ProfileDiff compare_profiles(const ProfileAnalysis& before, const ProfileAnalysis& after) {
  ProfileDiff diff{.before_s = before.step_s(), .after_s = after.step_s()};
  for (std::size_t i = 0; i < kTimeCategories; ++i)
    diff.categories[i] = {before.mean.seconds[i], after.mean.seconds[i]};
  std::map<std::string, OperationChange> changes;
  for (const OperationTotal& one : before.operations.operations) {
    OperationChange& change = changes[one.name];
    change.calls_before = one.calls;
    change.before_s = one.seconds;
  }
  for (const OperationTotal& one : after.operations.operations) {
    OperationChange& change = changes[one.name];
    change.calls_after = one.calls;
    change.after_s = one.seconds;
  }
  for (auto& [name, change] : changes) {
    change.name = name;
    change.kind = kind_of(change, diff.before_s);
    diff.operations.push_back(std::move(change));
  }
  std::sort(diff.operations.begin(), diff.operations.end(), [](const auto& a, const auto& b) {
    return std::tuple(-std::abs(a.delta_s()), a.name) < std::tuple(-std::abs(b.delta_s()), b.name);
  });
  return diff;
}

}  // namespace kintsugi
