#include "data/tokenizers/piece_scanner.h"

#include "data/tokenizers/utf8.h"

namespace kintsugi {
namespace {

constexpr std::uint8_t kLetter = UnicodeClasses::Letter, kNumber = UnicodeClasses::Number,
                       kSpace = UnicodeClasses::Space, kOther = 0;

bool newline(char c) { return c == '\r' || c == '\n'; }

// The length of 's 't 're 've 'm 'll 'd at `begin`, where an apostrophe stands; 0 if there is none.
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
  // The long s is an s where case does not count.
  return any_case && text.substr(begin + 1).starts_with("\u017F") ? 3 : 0;
}

}  // namespace

PieceScanner::PieceScanner(Kind kind, int digits)
    : kind_(kind), digits_(digits), classes_(&UnicodeClasses::get()) {
  for (std::size_t c = 0; c < ascii_.size(); ++c)
    ascii_[c] = classes_->of(static_cast<char32_t>(c)) & (kLetter | kNumber | kSpace);
}

inline PieceScanner::Character PieceScanner::at(std::string_view text, std::size_t place) const {
  if (place >= text.size()) return {kOther, 0};
  const auto byte = static_cast<unsigned char>(text[place]);
  if (byte < 0x80) return {ascii_[byte], 1};
  std::size_t length;
  const char32_t c = utf8_decode(text, place, length);
  return {static_cast<std::uint8_t>(classes_->of(c) & (kLetter | kNumber | kSpace)),
          static_cast<std::uint8_t>(length)};
}

inline std::size_t PieceScanner::skip(std::string_view text, std::size_t place,
                                      std::uint8_t kind) const {
  for (;;) {
    const Character c = at(text, place);
    if (c.bytes == 0 || c.kind != kind) return place;
    place += c.bytes;
  }
}

// \s+(?!\S)|\s+: before something else, white space leaves its last character to it.
std::size_t PieceScanner::white_space(std::string_view text, std::size_t begin) const {
  std::size_t last = begin, end = begin;
  for (Character c = at(text, begin); c.kind == kSpace; c = at(text, end)) {
    last = end;
    end += c.bytes;
  }
  return end == text.size() || last == begin ? end : last;
}

std::size_t PieceScanner::gpt2(std::string_view text, std::size_t begin) const {
  if (text[begin] == '\'')
    if (const std::size_t length = contraction(text, begin, false)) return begin + length;
  // " ?" before letters, numbers or the others
  const std::size_t place = begin + (text[begin] == ' ' ? 1 : 0);
  const Character c = at(text, place);
  if (c.bytes == 0 || c.kind == kSpace) return white_space(text, begin);
  return skip(text, place + c.bytes, c.kind);
}

std::size_t PieceScanner::llama3(std::string_view text, std::size_t begin) const {
  if (text[begin] == '\'')
    if (const std::size_t length = contraction(text, begin, true)) return begin + length;
  const Character c = at(text, begin);
  std::size_t end = begin + c.bytes;
  if (c.kind == kLetter) return skip(text, end, kLetter);
  if (c.kind == kNumber) {
    for (int i = 1; i < digits_ && at(text, end).kind == kNumber; ++i) end += at(text, end).bytes;
    return end;
  }
  // Any one character but a line end goes with the letters behind it.
  const Character next = at(text, end);
  if (next.kind == kLetter && !newline(text[begin])) return skip(text, end + next.bytes, kLetter);
  if (c.kind == kOther || (text[begin] == ' ' && next.bytes > 0 && next.kind == kOther)) {
    end = skip(text, end, kOther);
    while (end < text.size() && newline(text[end])) ++end;
    return end;
  }
  // \s*[\r\n]+: up to the last line end of the white space
  const std::size_t run = skip(text, begin, kSpace);
  for (std::size_t i = run; i > begin; --i)
    if (newline(text[i - 1])) return i;
  return white_space(text, begin);
}

}  // namespace kintsugi
