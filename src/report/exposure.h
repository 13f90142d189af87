#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/trace.h"

namespace kintsugi {

// What one rank did while it was traced.
struct RankTrace {
  int rank = 0;
  std::string place = {};  // "tp 0 cp 0 dp 1 pp 0"
  std::vector<TraceSpan> spans = {};
};

// Where the time of some steps went. Communication is under way from the moment this rank has come
// to a call; until the last of its ranks has come too, the call only waits.
struct Exposure {
  double total_s = 0;
  double compute_s = 0;        // an operation ran
  double communication_s = 0;  // a call was under way
  double exposed_s = 0;        // of that, while no operation ran
  double waiting_s = 0;        // of that, while all calls under way waited for other ranks
  std::int64_t bytes = 0;      // of the tensors of the calls

  double idle_s() const { return total_s - compute_s - exposed_s; }
  // Of communication; 1 where there was none.
  double hidden_share() const {
    return communication_s > 0 ? 1 - exposed_s / communication_s : 1.0;
  }
  Exposure& operator+=(const Exposure& other);
};

struct StepExposure {
  int rank = 0;
  std::string step = {};  // "step 3"
  Exposure all = {};
  std::map<std::string, Exposure> groups = {};  // each as if there were no other
};

// By the host's spans "step …" of every rank. The clocks of the ranks agree.
std::vector<StepExposure> step_exposures(const std::vector<RankTrace>& ranks);

// For people, one line for all and one for each group.
std::vector<std::string> exposure_lines(const std::vector<StepExposure>& steps);

}  // namespace kintsugi
