#include "data/corpora/document.h"

#include "core/error.h"
#include "data/corpora/json_line.h"

namespace kintsugi {

void parse_document(std::string_view line, const DocumentFormat& format, const std::string& file,
                    std::uint64_t line_number, Document& document) {
  document.prompt.clear();
  try {
    parse_json_line(line, format.text_key, format.prompt_key, document.text, document.prompt);
  } catch (const JsonLineError& error) {
    user_error("{}, line {}, byte {}: {}", file, line_number, error.byte(), error.what());
  }
}

}  // namespace kintsugi
