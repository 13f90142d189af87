#pragma once

#include <string>
#include <vector>

#include "energy/meters/find_meters.h"
#include "energy/meters/meter.h"

namespace kintsugi {

// What `kintsugi energy` prints, as text and as JSON.

struct EnergyView {
  const FoundMeters& found;
  ChosenMeters chosen;
  NodeShare share;
};

struct MeteredWindow {
  double seconds = 0;
  std::vector<MeterTotal> totals = {};  // of FoundMeters::meters, at the end of the window
};

std::string list_text(const EnergyView& view);
std::string list_json(const EnergyView& view);
std::string window_text(const EnergyView& view, const MeteredWindow& window);
std::string window_json(const EnergyView& view, const MeteredWindow& window);

}  // namespace kintsugi
