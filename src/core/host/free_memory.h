#pragma once

#include <cstddef>
#include <filesystem>
#include <limits>

namespace kintsugi {

// `root` is the directory that contains proc and sys.

// Memory that is available on this machine, or less if a control group limits this process. Other
// processes on the machine use the same memory.
std::size_t free_memory(const std::filesystem::path& root = "/");

// Bytes that this process may still map within its limits (ulimit -v, ulimit -d); kUnlimited if it
// has no limit.
inline constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
std::size_t free_address_space(const std::filesystem::path& root = "/");

}  // namespace kintsugi
