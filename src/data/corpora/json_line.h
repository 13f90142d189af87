#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kintsugi {

// What is wrong with a line of JSON, and at which of its bytes (counted from 1).
class JsonLineError : public std::runtime_error {
 public:
  JsonLineError(std::string message, std::size_t byte)
      : std::runtime_error(std::move(message)), byte_(byte) {}
  std::size_t byte() const { return byte_; }

 private:
  std::size_t byte_;
};

// Reads one JSON object and copies the strings of one or two of its keys (prompt_key may be empty);
// of equal keys the last counts. Strict: everything else in the line is checked too, down to UTF-8
// and surrogate pairs. Made for long strings: the parts without escapes are copied whole.
void parse_json_line(std::string_view line, std::string_view text_key, std::string_view prompt_key,
                     std::string& text, std::string& prompt);

}  // namespace kintsugi
