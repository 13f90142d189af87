#pragma once

#include <string_view>

namespace kintsugi {

// Written by cmake/build_info.cmake.
std::string_view program_version();  // "0.1.0"
std::string_view program_commit();   // "91f9bbc0a1b2", "… with changes", or "unknown"

}  // namespace kintsugi
