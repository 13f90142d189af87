#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/profile/profile.h"

namespace kintsugi {

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

}  // namespace kintsugi
