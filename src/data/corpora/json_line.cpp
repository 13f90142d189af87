#include <fmt/format.h>

#include <cstdint>
#include <cstring>

#include "core/error.h"
#include "data/corpora/record_reader.h"
#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

constexpr int kMaxDepth = 512;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Whether one of eight bytes is a quote, a backslash, a control character or not ASCII.
bool any_special(std::uint64_t word) {
  constexpr std::uint64_t kOnes = 0x0101010101010101, kHigh = 0x8080808080808080;
  const auto has_zero = [](std::uint64_t v) { return (v - kOnes) & ~v & kHigh; };
  const std::uint64_t quote = has_zero(word ^ (kOnes * '"'));
  const std::uint64_t backslash = has_zero(word ^ (kOnes * '\\'));
  const std::uint64_t control = (word - kOnes * 0x20) & ~word & kHigh;
  return ((word & kHigh) | quote | backslash | control) != 0;
}

class Scanner {
 public:
  explicit Scanner(std::string_view line) : line_(line) {}

  [[noreturn]] void fail(std::string message) const {
    throw JsonLineError(std::move(message), at_ + 1);
  }
  std::size_t at() const { return at_; }
  char peek() const { return at_ < line_.size() ? line_[at_] : '\0'; }
  bool at_end() const { return at_ == line_.size(); }

  void space() {
    while (at_ < line_.size() &&
           (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r' || line_[at_] == '\n'))
      ++at_;
  }
  bool take(char c) {
    if (at_end() || line_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c, const char* where) {
    if (!take(c)) fail(fmt::format("expected '{}' {}", c, where));
  }
  // Parses a string and appends its value to `value` unless that is nullptr.
  void string(std::string* value);
  // Parses any value and discards it.
  void skip_value(int depth = 1);

 private:
  void escape(std::string* value);
  std::uint32_t four_digits();
  void number();
  void word(std::string_view name) {
    if (line_.substr(at_, name.size()) != name) fail("expected a value");
    at_ += name.size();
  }
  template <class Entry>
  void list(char close, const char* where, Entry entry);

  std::string_view line_;
  std::size_t at_ = 0;
};

void Scanner::string(std::string* value) {
  expect('"', "before a string");
  std::size_t start = at_;  // the first byte not copied yet
  const auto flush = [&] {
    if (value != nullptr) value->append(line_, start, at_ - start);
  };
  while (true) {
    std::uint64_t word = 0;
    while (at_ + 8 <= line_.size()) {
      std::memcpy(&word, line_.data() + at_, 8);
      if (any_special(word)) break;
      at_ += 8;
    }
    if (at_end()) fail("the line ends inside a string");
    const char c = line_[at_];
    if (c == '"') {
      flush();
      ++at_;
      return;
    }
    if (c == '\\') {
      flush();
      escape(value);
      start = at_;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fail(fmt::format("an unescaped control character ({:#04x}) in a string",
                       static_cast<unsigned>(c)));
    } else {
      const std::size_t length = utf8_character_length(line_.substr(at_));
      if (length == 0) fail("invalid UTF-8");
      at_ += length;
    }
  }
}

std::uint32_t Scanner::four_digits() {
  std::uint32_t code = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = peek();
    const int digit = is_digit(c)              ? c - '0'
                      : (c >= 'a' && c <= 'f') ? c - 'a' + 10
                      : (c >= 'A' && c <= 'F') ? c - 'A' + 10
                                               : -1;
    if (digit < 0) fail("expected four hexadecimal digits after \\u");
    code = code * 16 + static_cast<std::uint32_t>(digit);
    ++at_;
  }
  return code;
}

void Scanner::escape(std::string* value) {
  constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
  ++at_;  // the backslash
  const char name = peek();
  if (const std::size_t simple = kNames.find(name); simple != std::string_view::npos && !at_end()) {
    if (value != nullptr) value->push_back(kValues[simple]);
    ++at_;
    return;
  }
  if (!take('u')) fail("an unknown escape in a string");
  std::uint32_t code = four_digits();
  if (code >= 0xDC00 && code < 0xE000)
    fail("the second half of a surrogate pair without the first");
  if (code >= 0xD800 && code < 0xDC00) {
    const bool second = take('\\') && take('u');
    const std::uint32_t low = second ? four_digits() : 0;
    if (low < 0xDC00 || low >= 0xE000)
      fail("the first half of a surrogate pair without the second");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  if (value != nullptr) utf8_append(*value, code);
}

void Scanner::number() {
  const auto digits = [&] {
    if (!is_digit(peek())) fail("expected a digit");
    while (is_digit(peek())) ++at_;
  };
  take('-');
  if (!take('0')) digits();
  if (take('.')) digits();
  if (take('e') || take('E')) {
    if (!take('+')) take('-');
    digits();
  }
}

template <class Entry>
void Scanner::list(char close, const char* where, Entry entry) {
  ++at_;
  space();
  if (take(close)) return;
  do {
    space();
    entry();
    space();
  } while (take(','));
  expect(close, where);
}

void Scanner::skip_value(int depth) {
  if (depth > kMaxDepth) fail(fmt::format("nested deeper than {}", kMaxDepth));
  switch (peek()) {
    case '"':
      return string(nullptr);
    case '{':
      return list('}', "at the end of an object", [&] {
        string(nullptr);
        space();
        expect(':', "after a key");
        space();
        skip_value(depth + 1);
      });
    case '[':
      return list(']', "at the end of an array", [&] { skip_value(depth + 1); });
    case 't':
      return word("true");
    case 'f':
      return word("false");
    case 'n':
      return word("null");
    default:
      if (peek() != '-' && !is_digit(peek())) fail("expected a value");
      number();
  }
}

struct RequestedKey {
  std::string_view key;
  std::string& value;
  bool found = false;
};

std::string list_keys(const std::vector<std::string>& keys) {
  constexpr std::size_t kMaxListed = 8;
  std::string text;
  for (std::size_t i = 0; i < keys.size() && i < kMaxListed; ++i)
    text += (i > 0 ? ", '" : "'") + keys[i] + "'";
  return keys.empty() ? "no keys" : text + (keys.size() > kMaxListed ? " …" : "");
}

}  // namespace

void append_json_string(std::string& json, std::string_view text) {
  constexpr std::uint64_t kOnes = 0x0101010101010101, kHigh = 0x8080808080808080;
  const auto has_zero = [](std::uint64_t v) { return (v - kOnes) & ~v & kHigh; };
  const auto flush = [&](std::size_t begin, std::size_t end) {
    json.append(text.data() + begin, end - begin);
  };
  json += '"';
  std::size_t begin = 0, at = 0;
  while (at < text.size()) {
    std::uint64_t word = 0;
    while (at + 8 <= text.size()) {
      std::memcpy(&word, text.data() + at, 8);
      const std::uint64_t control = (word - kOnes * 0x20) & ~word & kHigh;
      if ((has_zero(word ^ (kOnes * '"')) | has_zero(word ^ (kOnes * '\\')) | control) != 0) break;
      at += 8;
    }
    if (at == text.size()) break;
    const auto c = static_cast<unsigned char>(text[at]);
    if (c == '"' || c == '\\' || c < 0x20) {
      flush(begin, at);
      if (c == '\n')
        json += "\\n";
      else if (c < 0x20)
        json += fmt::format("\\u{:04x}", unsigned{c});
      else
        (json += '\\') += static_cast<char>(c);
      begin = at + 1;
    }
    ++at;
  }
  flush(begin, text.size());
  json += '"';
}

void parse_json_line(std::string_view line, std::string_view text_key, std::string_view prompt_key,
                     std::string& text, std::string& prompt) {
  RequestedKey requested[2] = {{text_key, text}, {prompt_key, prompt}};
  const int count = prompt_key.empty() ? 1 : 2;
  Scanner scanner(line);
  std::vector<std::string> keys;
  std::string key;
  scanner.space();
  if (scanner.peek() != '{')
    scanner.fail("expected an object: each line of JSONL must be a JSON object");
  scanner.expect('{', "");
  scanner.space();
  if (scanner.at_end())
    scanner.fail("the line ends inside the object: each line of JSONL must be a JSON object");
  if (!scanner.take('}')) {
    do {
      scanner.space();
      key.clear();
      scanner.string(&key);
      scanner.space();
      scanner.expect(':', "after a key");
      scanner.space();
      RequestedKey* match = nullptr;
      for (int i = 0; i < count; ++i)
        if (requested[i].key == key) match = &requested[i];
      if (match != nullptr) {
        if (scanner.peek() != '"')
          scanner.fail(fmt::format("the value of '{}' is not a string", key));
        match->value.clear();
        match->found = true;
        scanner.string(&match->value);
      } else {
        keys.push_back(key);
        scanner.skip_value();
      }
      scanner.space();
    } while (scanner.take(','));
    scanner.expect('}', "at the end of the object");
  }
  scanner.space();
  if (!scanner.at_end()) scanner.fail("unexpected text after the end of the object");
  for (int i = 0; i < count; ++i)
    if (!requested[i].found)
      throw JsonLineError(
          fmt::format("no key '{}'; the object has {}", requested[i].key, list_keys(keys)), 1);
}

void parse_document(std::string_view line, const DocumentFormat& format, const std::string& file,
                    std::uint64_t line_number, Document& document) {
  document.prompt.clear();
  try {
    parse_json_line(line, format.text_key, format.prompt_key, document.text, document.prompt);
  } catch (const JsonLineError& error) {
    user_error("{}, {} {}, byte {}: {}", file, RecordReader::unit_of(file), line_number,
               error.byte(), error.what());
  }
}

}  // namespace kintsugi
