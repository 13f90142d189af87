#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "report/profile/profile.h"

namespace kintsugi {

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

// Readable summary: one line for all groups and one per group.
std::vector<std::string> exposure_lines(const std::vector<StepExposure>& steps);

}  // namespace kintsugi
