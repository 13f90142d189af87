#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "model/config.h"

namespace kintsugi {

std::string grouped(std::int64_t value);  // 8,030,261,248
// The fields of a configuration, without those that its family does not use: one line each.
std::string dimensions_table(const ModelConfig& config);
nlohmann::ordered_json config_json(const ModelConfig& model);

}  // namespace kintsugi
