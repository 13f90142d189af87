#pragma once

#include <cstddef>
#include <filesystem>

namespace kintsugi {

// What this process may still take of the machine's memory: what is available, or less where its
// control group has a limit. `root` is where proc and sys are.
std::size_t free_memory(const std::filesystem::path& root = "/");

}  // namespace kintsugi
