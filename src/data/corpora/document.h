#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kintsugi {

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
