#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace kintsugi {

// Values of JSON objects that other programs may have written: anything may be missing or have
// another type.

// Null if `json` is no object or has no such key.
inline const nlohmann::ordered_json& json_at(const nlohmann::ordered_json& json, const char* key) {
  static const nlohmann::ordered_json kNull;
  if (!json.is_object()) return kNull;
  const auto found = json.find(key);
  return found == json.end() ? kNull : *found;
}

inline std::optional<double> number_at(const nlohmann::ordered_json& json, const char* key) {
  const nlohmann::ordered_json& value = json_at(json, key);
  if (!value.is_number()) return {};
  const auto number = value.get<double>();
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

// Empty if it is no text.
inline std::string text_at(const nlohmann::ordered_json& json, const char* key) {
  const nlohmann::ordered_json& value = json_at(json, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

// 0 where it is no whole number.
inline std::int64_t count_at(const nlohmann::ordered_json& json, const char* key) {
  const std::optional<double> number = number_at(json, key);
  return number && std::abs(*number) < 9e15 ? static_cast<std::int64_t>(*number) : 0;
}

}  // namespace kintsugi
