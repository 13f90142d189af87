#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
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

// A time in which the device does nothing and no communication is under way.
struct IdleGap {
  int rank = 0;
  std::int64_t step = 0;
  double begin_s = 0;  // since the start of the step
  double seconds = 0;
  std::string host = {};  // what the host did for most of the gap; empty: nothing known
  std::string before = {}, after = {};  // the device's spans around it; empty: the step's ends
};

struct IdleTime {
  double seconds = 0;  // per step and rank
  double gaps = 0;     // their number, per step and rank
  // By what the host did, longest first; the name is empty where nothing is known.
  struct HostShare {
    std::string host = {};
    double seconds = 0;  // per step and rank
  };
  std::vector<HostShare> hosts = {};
  std::vector<IdleGap> longest = {};  // at most kLongestGaps
};
inline constexpr std::size_t kLongestGaps = 10;

IdleTime idle_time(const Profile& profile);

// The time of some steps by activity. A call is active from the moment this rank enters it. Until
// the last rank has entered it, the call is waiting.
struct Exposure {
  double total_s = 0;
  double compute_s = 0;        // while the device worked, without communication
  double communication_s = 0;  // while a call was active
  double exposed_s = 0;        // part of communication_s without compute
  double waiting_s = 0;        // part of exposed_s while all active calls waited for other ranks
  std::int64_t bytes = 0;      // size of the tensors of the calls

  double idle_s() const { return total_s - compute_s - exposed_s; }
  // The fraction of communication that overlaps with compute; 1 without communication.
  double hidden_share() const {
    return communication_s > 0 ? 1 - exposed_s / communication_s : 1.0;
  }
  Exposure& operator+=(const Exposure& other);
};

struct StepExposure {
  int rank = 0;
  std::int64_t step = 0;
  Exposure all = {};
  std::map<std::string, Exposure> groups = {};  // each computed as if it were the only one
};

// One entry per host span "step …" of every rank. Assumes synchronized clocks.
std::vector<StepExposure> step_exposures(const std::vector<RankTrace>& ranks);

// The sums over all steps and ranks.
StepExposure sum_of(const std::vector<StepExposure>& steps);

// Readable summary: one line for all groups and one per group.
std::vector<std::string> exposure_lines(const std::vector<StepExposure>& steps);

}  // namespace kintsugi
