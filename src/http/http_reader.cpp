#include "http/http_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <system_error>

namespace kintsugi {
namespace {

constexpr std::size_t kReadAtOnce = 64 << 10;

[[noreturn]] void invalid(std::string_view what) {
  throw HttpError(400, "bad_request", fmt::format("not a valid HTTP request: {}", what));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_visible(char c) { return c > ' ' && c < '\x7f'; }

// Methods and names of fields.
bool is_token(std::string_view text) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return is_letter(c) || is_digit(c) || kOthers.find(c) != kOthers.npos;
  });
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Whether a list "a, b" has the word.
bool lists(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (lower(trimmed(list.substr(0, comma))) == word) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

// "Name: value"
std::pair<std::string, std::string> field_of(const std::string& line) {
  const std::size_t colon = line.find(':');
  // Also a space before the colon, and a line that continues the one before.
  if (colon == line.npos || !is_token(std::string_view(line).substr(0, colon)))
    invalid("a header line is not 'Name: value'");
  const std::string_view value = trimmed(std::string_view(line).substr(colon + 1));
  if (!std::all_of(value.begin(), value.end(),
                   [](unsigned char c) { return c == '\t' || (c >= ' ' && c != 0x7f); }))
    invalid("a header has control characters");
  return {lower(std::string_view(line).substr(0, colon)), std::string(value)};
}

// The whole text is a number in this base: no sign, no space, no "0x". None if it is not, or is
// larger than 2^63.
std::optional<std::size_t> number_of(std::string_view text, int base) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.starts_with('-') || error != std::errc() || end != text.data() + text.size()) return {};
  return static_cast<std::size_t>(value);
}

// %41 becomes A; in a query, + becomes a space.
std::string decoded(std::string_view text, bool is_query) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && is_query) {
      result += ' ';
    } else if (text[i] != '%') {
      result += text[i];
    } else {
      const auto code = i + 2 < text.size() ? number_of(text.substr(i + 1, 2), 16) : std::nullopt;
      if (!code) invalid("% is not followed by two hexadecimal digits");
      result += static_cast<char>(*code);
      i += 2;
    }
  }
  return result;
}

std::vector<std::pair<std::string, std::string>> query_of(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> query;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find('&'));
    const std::size_t equals = std::min(item.find('='), item.size());
    if (!item.empty())
      query.emplace_back(decoded(item.substr(0, equals), true),
                         decoded(item.substr(std::min(equals + 1, item.size())), true));
    text.remove_prefix(std::min(item.size() + 1, text.size()));
  }
  return query;
}

// "GET /path HTTP/1.1"
HttpHead request_line(std::string_view line) {
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == line.npos || last == first) invalid("the first line is not 'METHOD /path HTTP/1.1'");
  const std::string_view target = line.substr(first + 1, last - first - 1),
                         version = line.substr(last + 1);
  HttpHead head{.method = std::string(line.substr(0, first)), .target = std::string(target)};
  if (!is_token(head.method)) invalid("the method is not a word");
  if (!target.starts_with('/') || !std::all_of(target.begin(), target.end(), is_visible))
    invalid("the target is not a path");
  if (!version.starts_with("HTTP/")) invalid("the first line is not 'METHOD /path HTTP/1.1'");
  if (version != "HTTP/1.1" && version != "HTTP/1.0")
    throw HttpError(505, "unsupported_version", "this server speaks HTTP/1.1");
  head.chunks = version == "HTTP/1.1";
  return head;
}

}  // namespace

std::size_t HttpHead::count(std::string_view name) const {
  return static_cast<std::size_t>(std::count_if(
      fields.begin(), fields.end(), [&](const auto& field) { return field.first == name; }));
}

std::string HttpHead::value(std::string_view name) const {
  for (const auto& [key, text] : fields)
    if (key == name) return text;
  return "";
}

HttpRequest HttpHead::request() const {
  const std::size_t mark = std::min(target.find('?'), target.size());
  const std::string_view all = target;
  return {.method = method,
          .path = decoded(all.substr(0, mark), false),
          .authorization = value("authorization"),
          .origin = value("origin"),
          .host = value("host"),
          .query = query_of(all.substr(std::min(mark + 1, all.size())))};
}

void HttpReader::incomplete() const {
  const std::string what = in_body_ ? "the body" : "the header";
  if (connection_.timed_out()) throw HttpError(408, "timeout", what + " did not arrive in time");
  if (connection_.over_limit() && !in_body_)
    throw HttpError(431, "header_too_large", "the header is too long");
  throw HttpError(400, "bad_request", what + " is incomplete");
}

HttpError HttpReader::too_large() const {
  return {
      413, "body_too_large",
      fmt::format("the body has more than the {} bytes of this server (--max-body)", max_body_)};
}

// Up to CR LF, which every line ends with.
std::string HttpReader::line() {
  std::string text;
  for (char c = 0;;) {
    if (connection_.read(&c, 1) != 1) incomplete();
    if (c == '\n') break;
    text += c;
  }
  if (text.empty() || text.back() != '\r' || text.find('\r') != text.size() - 1)
    invalid("a line does not end with CR LF");
  text.pop_back();
  return text;
}

// Up to the empty line.
std::vector<std::pair<std::string, std::string>> HttpReader::fields() {
  std::vector<std::pair<std::string, std::string>> all;
  for (std::string text = line(); !text.empty(); text = line()) all.push_back(field_of(text));
  return all;
}

std::optional<HttpHead> HttpReader::head() {
  if (connection_.at_end()) return {};
  std::string first = line();
  if (first.empty()) first = line();  // some clients end a body with an empty line
  HttpHead head = request_line(first);
  head.fields = fields();
  for (const char* single : {"host", "authorization", "origin", "content-length"})
    if (head.count(single) > 1) invalid(fmt::format("it has two headers {}", single));
  head.persistent = head.chunks;
  for (const auto& [name, value] : head.fields)
    if (name == "connection" && lists(value, "close")) head.persistent = false;
  return head;
}

std::optional<HttpError> HttpReader::wrong_body(const HttpHead& head) const {
  const std::string length = head.value("content-length");
  const std::size_t codings = head.count("transfer-encoding");
  if (head.count("content-length") + codings > 1)
    return HttpError(400, "bad_request", "a body has one Content-Length or is chunked");
  if (codings == 1 && lower(head.value("transfer-encoding")) != "chunked")
    return HttpError(501, "unsupported_encoding", "the only Transfer-Encoding here is chunked");
  if (codings == 1 && !head.chunks)
    return HttpError(400, "bad_request", "HTTP/1.0 has no Transfer-Encoding");
  if (lower(head.value("content-type")).starts_with("multipart/"))
    return HttpError(415, "unsupported_type", "the body is JSON: application/json, not a form");
  if (head.count("content-encoding") > 0)
    return HttpError(415, "unsupported_encoding", "send the body without a Content-Encoding");
  if (head.method == "POST" && !head.has_body())
    return HttpError(411, "length_required", "a POST needs a Content-Length");
  if (codings == 0 && head.has_body() &&
      (length.empty() || !std::all_of(length.begin(), length.end(), is_digit)))
    return HttpError(400, "bad_request", "the Content-Length is not a number");
  if (codings == 0 && head.has_body() && number_of(length, 10).value_or(SIZE_MAX) > max_body_)
    return too_large();
  const std::string expected = lower(head.value("expect"));
  if (!expected.empty() && expected != "100-continue")
    return HttpError(417, "unsupported_expectation", "the only expectation here is 100-continue");
  return {};
}

std::string HttpReader::body(const HttpHead& head) {
  in_body_ = true;
  connection_.begin_body();
  if (head.count("expect") > 0) {
    constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    connection_.write(kContinue.data(), kContinue.size());
  }
  if (head.count("transfer-encoding") > 0) return chunks();
  std::string text;
  append(text, *number_of(head.value("content-length"), 10));
  return text;
}

void HttpReader::append(std::string& text, std::size_t count) {
  // Memory is taken as bytes arrive: a client may announce many and send none.
  while (count > 0) {
    const std::size_t before = text.size(), most = std::min(count, kReadAtOnce);
    text.resize(before + most);
    const ssize_t got = connection_.read(text.data() + before, most);
    if (got <= 0) incomplete();
    text.resize(before + static_cast<std::size_t>(got));
    count -= static_cast<std::size_t>(got);
  }
}

std::string HttpReader::chunks() {
  std::string text;
  while (true) {
    const std::string size_line = line();  // "1d;extension"
    const auto size = number_of(std::string_view(size_line).substr(0, size_line.find(';')), 16);
    if (!size) invalid("the size of a chunk is not a hexadecimal number");
    if (*size == 0) break;
    if (*size > max_body_ - text.size()) throw too_large();
    append(text, *size);
    if (!line().empty()) invalid("a chunk is longer than its size");
  }
  fields();  // after the last chunk; nothing here uses them
  return text;
}

}  // namespace kintsugi
