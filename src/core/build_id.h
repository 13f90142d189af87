#pragma once

#include <string>

namespace kintsugi {

// The GNU build ID of this executable, which the linker computed from its contents, in hexadecimal
// digits. "unknown" if the linker wrote none.
std::string build_id();

}  // namespace kintsugi
