#pragma once

#include <string>
#include <vector>

namespace kintsugi {

// The files of machines/, compiled in by cmake/embed_presets.cmake.
struct EmbeddedMachine {
  std::string name;
  std::string yaml;
};
const std::vector<EmbeddedMachine>& embedded_machines();

}  // namespace kintsugi
