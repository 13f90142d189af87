#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "report/profile/analysis.h"

namespace kintsugi {

enum class ChangeKind : std::uint8_t { Slower, Faster, Added, Removed, Unchanged };
std::string_view to_string(ChangeKind kind);

// One operation in two profiles. Figures are per step and rank.
struct OperationChange {
  std::string name = {};
  ChangeKind kind = ChangeKind::Unchanged;
  double calls_before = 0, calls_after = 0;
  double before_s = 0, after_s = 0;

  double delta_s() const { return after_s - before_s; }
};

struct ProfileDiff {
  double before_s = 0, after_s = 0;                                        // a step
  std::array<std::pair<double, double>, kTimeCategories> categories = {};  // before, after
  std::vector<OperationChange> operations = {};                            // largest change first

  std::string headline() const;  // what got slower the most
};

// A change is smaller than 2 % of the operation and 0.05 % of the step: unchanged.
ProfileDiff compare_profiles(const ProfileAnalysis& before, const ProfileAnalysis& after);

}  // namespace kintsugi
