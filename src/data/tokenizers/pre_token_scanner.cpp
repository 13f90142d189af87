#include "data/tokenizers/pre_token_scanner.h"

#include "data/tokenizers/utf8.h"

namespace kintsugi {
namespace {

constexpr std::uint8_t kLetter = UnicodeClasses::Letter, kNumber = UnicodeClasses::Number,
                       kSpace = UnicodeClasses::Space, kOther = 0;

bool newline(char c) { return c == '\r' || c == '\n'; }

// The length of a contraction ('s 't 're 've 'm 'll 'd) whose apostrophe is at `begin`; 0 if none.
std::size_t contraction(std::string_view text, std::size_t begin, bool any_case) {
  const auto lower = [&](std::size_t i) -> char {
    if (begin + i >= text.size()) return '\0';
    const char c = text[begin + i];
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = lower(1), second = lower(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if ((first == 'r' || first == 'v') && second == 'e') return 3;
  if (first == 'l' && second == 'l') return 3;
  // Ignoring case, the long s is an s.
  return any_case && text.substr(begin + 1).starts_with("\u017F") ? 3 : 0;
}

}  // namespace

PreTokenScanner::PreTokenScanner(Kind kind, int digits)
    : kind_(kind), digits_(digits), classes_(&UnicodeClasses::get()) {
  for (std::size_t c = 0; c < ascii_.size(); ++c)
    ascii_[c] = classes_->of(static_cast<char32_t>(c)) & (kLetter | kNumber | kSpace);
}

inline PreTokenScanner::Character PreTokenScanner::at(std::string_view text,
                                                      std::size_t position) const {
  if (position >= text.size()) return {kOther, 0};
  const auto byte = static_cast<unsigned char>(text[position]);
  if (byte < 0x80) return {ascii_[byte], 1};
  std::size_t length;
  const char32_t c = utf8_decode(text, position, length);
  return {static_cast<std::uint8_t>(classes_->of(c) & (kLetter | kNumber | kSpace)),
          static_cast<std::uint8_t>(length)};
}

inline std::size_t PreTokenScanner::skip(std::string_view text, std::size_t position,
                                         std::uint8_t kind) const {
  for (;;) {
    const Character c = at(text, position);
    if (c.bytes == 0 || c.kind != kind) return position;
    position += c.bytes;
  }
}

// \s+(?!\S)|\s+: the last white-space character before other text belongs to that text.
std::size_t PreTokenScanner::white_space(std::string_view text, std::size_t begin) const {
  std::size_t last = begin, end = begin;
  for (Character c = at(text, begin); c.kind == kSpace; c = at(text, end)) {
    last = end;
    end += c.bytes;
  }
  return end == text.size() || last == begin ? end : last;
}

std::size_t PreTokenScanner::gpt2(std::string_view text, std::size_t begin) const {
  if (text[begin] == '\'')
    if (const std::size_t length = contraction(text, begin, false)) return begin + length;
  // " ?" before letters, numbers or other characters
  const std::size_t position = begin + (text[begin] == ' ' ? 1 : 0);
  const Character c = at(text, position);
  if (c.bytes == 0 || c.kind == kSpace) return white_space(text, begin);
  return skip(text, position + c.bytes, c.kind);
}

std::size_t PreTokenScanner::llama3(std::string_view text, std::size_t begin) const {
  if (text[begin] == '\'')
    if (const std::size_t length = contraction(text, begin, true)) return begin + length;
  const Character c = at(text, begin);
  std::size_t end = begin + c.bytes;
  if (c.kind == kLetter) return skip(text, end, kLetter);
  if (c.kind == kNumber) {
    for (int i = 1; i < digits_ && at(text, end).kind == kNumber; ++i) end += at(text, end).bytes;
    return end;
  }
  // Any single character except a line break is joined with the letters after it.
  const Character next = at(text, end);
  if (next.kind == kLetter && !newline(text[begin])) return skip(text, end + next.bytes, kLetter);
  if (c.kind == kOther || (text[begin] == ' ' && next.bytes > 0 && next.kind == kOther)) {
    end = skip(text, end, kOther);
    while (end < text.size() && newline(text[end])) ++end;
    return end;
  }
  // \s*[\r\n]+: up to the last line break of the white space
  const std::size_t space_end = skip(text, begin, kSpace);
  for (std::size_t i = space_end; i > begin; --i)
    if (newline(text[i - 1])) return i;
  return white_space(text, begin);
}

}  // namespace kintsugi
