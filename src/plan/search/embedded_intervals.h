#pragma once

#include <string>
#include <vector>

namespace kintsugi {

// The files of uncertainty/, compiled in by cmake/embed_presets.cmake.
struct EmbeddedIntervals {
  std::string name;
  std::string yaml;
};
const std::vector<EmbeddedIntervals>& embedded_intervals();

}  // namespace kintsugi
