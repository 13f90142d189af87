#pragma once

#include <string>
#include <vector>

namespace kintsugi {

// The files of models/, embedded in the binary by cmake/embed_presets.cmake.
struct EmbeddedPreset {
  std::string name;
  std::string yaml;
};
const std::vector<EmbeddedPreset>& embedded_presets();

}  // namespace kintsugi
