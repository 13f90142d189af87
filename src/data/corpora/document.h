#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kintsugi {

struct DocumentFormat {
  std::string text_key = "text";  // of JSONL
  std::string prompt_key;         // of JSONL: text before it that carries no loss; empty: none
};

struct Document {
  std::string prompt, text;
};

// What a line of JSONL (record_reader.h) holds; a UserError names file, line and byte.
void parse_document(std::string_view line, const DocumentFormat& format, const std::string& file,
                    std::uint64_t line_number, Document& document);

}  // namespace kintsugi
