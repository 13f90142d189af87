#pragma once

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace kintsugi {

// A member of a JSON object, as it is written. Views of the text.
struct JsonMember {
  enum class Kind : unsigned char { Number, Null, Text, Nested, Word };  // Word: true or false
  std::string_view key;  // between its quotes, with escapes
  std::string_view value;
  Kind kind = Kind::Null;
  double number = 0;  // of a Number; infinite if it is too large for a double
};

// Goes through the members of a JSON object without building a tree, for files with a million
// lines. Checks the form of the object, but not the inside of nested values.
class JsonMembers {
 public:
  explicit JsonMembers(std::string_view object);
  bool next(JsonMember& member);  // false: no more, or damaged
  // After the last member: the object was complete, with nothing behind it.
  bool is_complete() const { return complete_; }

 private:
  void skip_space();
  bool take(char c);
  bool take_string(std::string_view& text);
  bool take_nested();
  bool take_number(double& number);
  bool take_value(JsonMember& member);

  const char* at_;
  const char* end_;
  bool begun_ = false, complete_ = false;
};

// Parses a text of unknown origin. Nothing if it is damaged, is nested more than 64 levels deep (a
// value that is nested deeply takes as many stack frames to write) or has an object with more than
// 2,048 members (the time to add one grows with their number); `problem` then says which.
std::optional<nlohmann::ordered_json> parse_untrusted_json(std::string_view text,
                                                           std::string* problem = nullptr);

// One line; invalid UTF-8 is replaced.
std::string compact_json(const nlohmann::ordered_json& json);

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
