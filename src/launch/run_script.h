#pragma once

#include <filesystem>

namespace kintsugi {

// Runs a bash script in a process group of its own, which is sent the signals of this process.
// Returns its exit code; 128 + signal if one killed it.
int run_script(const std::filesystem::path& script);

}  // namespace kintsugi
