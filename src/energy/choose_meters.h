#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "energy/find_meters.h"
#include "energy/shared_node.h"

namespace kintsugi {

// The meters of one level of a node: all from one source, so that nothing is counted twice.
struct LevelMeters {
  std::string source = {};               // "": none
  std::vector<std::size_t> meters = {};  // to add up: indices into FoundMeters::meters
  std::string reason = {};               // why there is none
  std::string uncovered = {};            // what the meters leave out; "": nothing
};

struct ChosenMeters {
  std::array<LevelMeters, kEnergyLevels.size()> levels = {};
  const LevelMeters& operator[](EnergyLevel level) const {
    return levels[static_cast<std::size_t>(level)];
  }
};

// The best source for each level: one that leaves nothing out before others, counters before
// integrated power, and power before estimates. If the run uses only some of the node's GPUs, only
// sources that know which ones are used.
ChosenMeters choose_meters(const FoundMeters& found, const MeterSearch& search,
                           const NodeShare& share);

}  // namespace kintsugi
