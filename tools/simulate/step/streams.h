#pragma once

#include <map>
#include <string>
#include <vector>

#include "plan/search/step_replay.h"

namespace kintsugi {

// What items take on a GPU with a stream for compute and one for communication.
struct ItemTime {
  double total_s = 0;
  std::map<std::string, double> exposed = {};  // waits, by group

  double exposed_s() const;
};
ItemTime& operator+=(ItemTime& sum, const ItemTime& other);

struct ChunkTime {
  ItemTime forward, backward;
};
// By stage and chunk; `call_s` is the time of each call.
std::vector<std::vector<ChunkTime>> chunk_times(const StepReplay& replay,
                                                const std::vector<double>& call_s);

}  // namespace kintsugi
