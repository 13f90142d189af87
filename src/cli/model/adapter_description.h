#pragma once

#include <filesystem>

namespace kintsugi {

// Prints what a PEFT directory holds, and with `tensors` also its tensors.
void print_adapter(const std::filesystem::path& directory, bool as_json, bool tensors);

}  // namespace kintsugi
