#pragma once

#include <string>
#include <vector>

namespace kintsugi {

// The files of programs/ and machines/, compiled in by cmake/embed_presets.cmake.
struct EmbeddedDescription {
  std::string name;
  std::string yaml;
};
const std::vector<EmbeddedDescription>& embedded_programs();
const std::vector<EmbeddedDescription>& embedded_measured_machines();

}  // namespace kintsugi
