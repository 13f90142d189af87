#pragma once

#include <string>

namespace kintsugi {

// What tells this program's file from that of any other build: the identifier that the linker
// computed from its contents, in hexadecimal digits. "unknown" where the linker made none.
std::string build_id();

}  // namespace kintsugi
