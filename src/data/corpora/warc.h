#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kintsugi {

// What is wrong with a record of a web archive.
class WarcError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The header of a record of a web archive: WARC 1.0 and 1.1, of which WET files are a kind.
struct WarcHeader {
  std::string type = {}, uri = {}, date = {}, id = {}, language = {};
  std::uint64_t header_bytes = 0, content_bytes = 0;
};

// Of the record at the beginning of `text`; empty: the header ends behind it. WarcError.
std::optional<WarcHeader> parse_warc_header(std::string_view text);

// The record as a JSON object in one line, with its text, url, date, language and id, as far as it
// has them: of a `conversion` (extracted text) and of a `response` with text, whose HTTP header is
// left out. False for any other record.
bool append_warc_object(const WarcHeader& header, std::string_view content, std::string& json);
bool may_have_document(const WarcHeader& header);

// The next place at or behind `from` where a record seems to begin; npos: none.
std::size_t find_warc_record(std::string_view text, std::size_t from);

}  // namespace kintsugi
