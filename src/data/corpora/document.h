#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kintsugi {

// An error in a line of JSON, with the number of the byte (from 1).
class JsonLineError : public std::runtime_error {
 public:
  JsonLineError(std::string message, std::size_t byte)
      : std::runtime_error(std::move(message)), byte_(byte) {}
  std::size_t byte() const { return byte_; }

 private:
  std::size_t byte_;
};

// Parses one JSON object and copies the string values of one or two keys (prompt_key may be empty).
// If a key is repeated, its last value counts. Strict: the rest of the line is checked too,
// including UTF-8 and surrogate pairs. Optimized for long strings: text without escapes is copied
// in bulk.
void parse_json_line(std::string_view line, std::string_view text_key, std::string_view prompt_key,
                     std::string& text, std::string& prompt);

struct DocumentFormat {
  std::string text_key = "text";  // JSONL key of the text
  std::string prompt_key;  // JSONL key of a prompt before the text, without loss; empty: none
};

struct Document {
  std::string prompt, text;
};

// Parses a line of JSONL (record_reader.h). A UserError names file, line and byte.
void parse_document(std::string_view line, const DocumentFormat& format, const std::string& file,
                    std::uint64_t line_number, Document& document);

}  // namespace kintsugi
