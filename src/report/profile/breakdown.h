#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "report/profile/profile.h"

namespace kintsugi {

// What a step spends its time on. Of several at the same time, the first in this order counts.
enum class TimeCategory : std::uint8_t {
  Kernel,         // the device computes
  Memcpy,         // it copies
  Memset,         // it fills memory
  Communication,  // only communication is under way: it is exposed
  Runtime,        // the host is in a call of the GPU's runtime
  DataLoader,     // the host waits for tokens
  CpuExec,        // the host does something else that has a name
  Other,          // nothing that was recorded
};
inline constexpr std::size_t kTimeCategories = 8;
inline constexpr std::array<TimeCategory, kTimeCategories> kAllCategories = {
    TimeCategory::Kernel,        TimeCategory::Memcpy,  TimeCategory::Memset,
    TimeCategory::Communication, TimeCategory::Runtime, TimeCategory::DataLoader,
    TimeCategory::CpuExec,       TimeCategory::Other};
std::string_view to_string(TimeCategory category);  // "CPU Exec"

// Seconds. The categories add up to `wall_s`.
struct TimeBreakdown {
  double wall_s = 0;
  std::array<double, kTimeCategories> seconds = {};
  double overlap_s = 0;          // kernels and communication at the same time
  double multiprocessors_s = 0;  // of kernels, times the share of multiprocessors with a block

  double operator[](TimeCategory category) const {
    return seconds[static_cast<std::size_t>(category)];
  }
  double share(TimeCategory category) const { return wall_s > 0 ? (*this)[category] / wall_s : 0; }
  double utilisation() const { return share(TimeCategory::Kernel); }
  double multiprocessor_efficiency() const { return wall_s > 0 ? multiprocessors_s / wall_s : 0; }
  // Neither the device works nor communication is under way.
  double idle_s() const;
  TimeBreakdown& operator+=(const TimeBreakdown& other);
};
TimeBreakdown operator*(double factor, TimeBreakdown breakdown);

struct StepBreakdown : TimeBreakdown {
  int rank = 0;
  std::int64_t step = 0;
};

// One entry per step of every rank.
std::vector<StepBreakdown> step_breakdowns(const Profile& profile);
// The mean of all entries.
TimeBreakdown mean_breakdown(const std::vector<StepBreakdown>& steps);

}  // namespace kintsugi
