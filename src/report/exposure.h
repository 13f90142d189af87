#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/trace.h"

namespace kintsugi {

// The trace of one rank.
struct RankTrace {
  int rank = 0;
  std::string coordinates = {};  // "tp 0 cp 0 dp 1 pp 0"
  std::vector<TraceSpan> spans = {};
};

// The time of some steps by activity. A call is active from the moment this rank enters it. Until
// the last rank has entered it, the call is waiting.
struct Exposure {
  double total_s = 0;
  double compute_s = 0;        // while an operation ran
  double communication_s = 0;  // while a call was active
  double exposed_s = 0;        // part of communication_s while no operation ran
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
  std::string step = {};  // "step 3"
  Exposure all = {};
  std::map<std::string, Exposure> groups = {};  // each computed as if it were the only one
};

// One entry per host span "step …" of every rank. Assumes synchronized clocks.
std::vector<StepExposure> step_exposures(const std::vector<RankTrace>& ranks);

// Readable summary: one line for all groups and one per group.
std::vector<std::string> exposure_lines(const std::vector<StepExposure>& steps);

}  // namespace kintsugi
