#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "model/config.h"

namespace kintsugi {

std::string grouped(std::int64_t value);  // 8,030,261,248
// The fields of a configuration, without those that its family does not use: one line each.
std::string dimensions_table(const ModelConfig& config);
nlohmann::ordered_json config_json(const ModelConfig& model);

// Prints what a PEFT directory holds, and with `tensors` also its tensors.
void print_adapter(const std::filesystem::path& directory, bool as_json, bool tensors);

}  // namespace kintsugi
