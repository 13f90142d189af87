#pragma once

#include <string>

namespace kintsugi {

// What `kintsugi --version` prints: version, commit, compiler, backends and library versions.
std::string version_text();

}  // namespace kintsugi
