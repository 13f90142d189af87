#pragma once

#include <cstddef>
#include <filesystem>
#include <limits>

namespace kintsugi {

// `root` is where proc and sys are.

// What is left of the machine's memory for this process and those beside it: what is available, or
// less where its control group has a limit.
std::size_t free_memory(const std::filesystem::path& root = "/");

// What this process may still map within its own limits (ulimit -v, ulimit -d); kUnlimited if it
// has none.
inline constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
std::size_t free_address_space(const std::filesystem::path& root = "/");

}  // namespace kintsugi
