#pragma once

#include <string>
#include <string_view>

namespace kintsugi {

// Defined in a file that cmake/build_info.cmake generates.
std::string_view program_version();    // "0.1.0"
std::string_view program_commit();     // "91f9bbc0a1b2", "… with changes", or "unknown"
std::string_view program_compiler();   // "GNU 12.2.0 for x86-64-v3"
std::string_view program_libraries();  // "fmt 9.1.0, yaml-cpp 0.7.0, …"
std::string_view program_left_out();   // optional parts that were not built: "NCCL, dlib"

// The GNU build ID of this executable, which the linker computed from its contents, in hexadecimal
// digits. "unknown" if the linker wrote none.
std::string build_id();

}  // namespace kintsugi
