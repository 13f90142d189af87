#include "data/corpora/warc.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "data/corpora/record_reader.h"
#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

constexpr std::string_view kRecordStart = "WARC/1.";
constexpr std::size_t kLongestHeader = 1 << 20;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 60;

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

// Where a header of lines ends: behind its empty line. npos: behind the text.
std::size_t end_of_header(std::string_view text) {
  for (std::size_t at = text.find('\n'); at != std::string_view::npos; at = text.find('\n', at + 1))
    if (text.substr(at + 1).starts_with('\n'))
      return at + 2;
    else if (text.substr(at + 1).starts_with("\r\n"))
      return at + 3;
  return std::string_view::npos;
}

// Calls use(name, value) for each field behind the first line.
template <class Use>
void for_each_field(std::string_view header, const Use& use) {
  std::size_t begin = header.find('\n');
  while (begin != std::string_view::npos) {
    const std::size_t end = header.find('\n', ++begin);
    const std::string_view line = header.substr(begin, end - begin);
    if (const std::size_t colon = line.find(':'); colon != std::string_view::npos)
      use(trimmed(line.substr(0, colon)), trimmed(line.substr(colon + 1)));
    begin = end;
  }
}

// The text of a response; empty: it has none.
std::optional<std::string_view> body_of(std::string_view response) {
  const std::size_t begin = end_of_header(response);
  if (!response.starts_with("HTTP/") || begin == std::string_view::npos) return {};
  bool is_text = true;
  for_each_field(response.substr(0, begin), [&](std::string_view name, std::string_view value) {
    if (same_name(name, "Content-Type"))
      is_text = same_name(value.substr(0, 5), "text/") || value.find("xml") != value.npos ||
                value.find("json") != value.npos;
  });
  return is_text ? std::optional(response.substr(begin)) : std::nullopt;
}

}  // namespace

std::optional<WarcHeader> parse_warc_header(std::string_view text) {
  if (!text.substr(0, kRecordStart.size()).starts_with(kRecordStart.substr(0, text.size())))
    throw WarcError("no record begins here with WARC/1.");
  const std::size_t end = end_of_header(text.substr(0, kLongestHeader));
  if (end == std::string_view::npos) {
    if (text.size() >= kLongestHeader)
      throw WarcError(fmt::format("a header of more than {} bytes", kLongestHeader));
    return {};
  }
  WarcHeader header{.header_bytes = end};
  bool has_length = false;
  for_each_field(text.substr(0, end), [&](std::string_view name, std::string_view value) {
    if (same_name(name, "WARC-Type")) header.type = value;
    if (same_name(name, "WARC-Target-URI")) header.uri = value;
    if (same_name(name, "WARC-Date")) header.date = value;
    if (same_name(name, "WARC-Record-ID")) header.id = value;
    if (same_name(name, "WARC-Identified-Content-Language")) header.language = value;
    if (!same_name(name, "Content-Length")) return;
    const char* const last = value.data() + value.size();
    const auto parsed = std::from_chars(value.data(), last, header.content_bytes);
    has_length =
        parsed.ec == std::errc() && parsed.ptr == last && header.content_bytes < kMostBytes;
  });
  if (!has_length) throw WarcError("a record without a Content-Length that is a number");
  return header;
}

bool may_have_document(const WarcHeader& header) {
  return header.type == "conversion" || header.type == "response";
}

bool append_warc_object(const WarcHeader& header, std::string_view content, std::string& json) {
  std::optional<std::string_view> text = content;
  if (header.type == "response") text = body_of(content);
  if (!may_have_document(header) || !text) return false;
  json += "{\"text\":";
  append_json_string(json, *text);
  for (const auto& [key, value] : {std::pair{"url", &header.uri},
                                   {"date", &header.date},
                                   {"language", &header.language},
                                   {"id", &header.id}}) {
    if (value->empty()) continue;
    json += fmt::format(",\"{}\":", key);
    append_json_string(json, replace_invalid_utf8(*value));
  }
  json += '}';
  return true;
}

std::size_t find_warc_record(std::string_view text, std::size_t from) {
  for (std::size_t at = text.find(kRecordStart, from); at != std::string_view::npos;
       at = text.find(kRecordStart, at + 1))
    if (at == 0 || text[at - 1] == '\n') return at;
  return std::string_view::npos;
}

}  // namespace kintsugi
