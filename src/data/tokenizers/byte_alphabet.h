#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kintsugi {

// GPT-2's printable alphabet, in which byte-level tokenizers write bytes: visible Latin-1
// characters map to themselves, the other 68 bytes, in order, to U+0100 and up. All letters are
// below U+0144, so each takes one or two bytes of UTF-8.
namespace detail {

constexpr bool visible_in_latin1(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct ByteAlphabet {
  std::array<std::uint16_t, 256> letter{};  // code point of each byte
  std::array<std::int16_t, 0x144> byte{};   // byte of each letter; -1: not in the alphabet

  constexpr ByteAlphabet() {
    for (std::int16_t& b : byte) b = -1;
    std::uint16_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const std::uint16_t code = visible_in_latin1(b) ? static_cast<std::uint16_t>(b) : next++;
      letter[static_cast<std::size_t>(b)] = code;
      byte[code] = static_cast<std::int16_t>(b);
    }
  }
};

inline constexpr ByteAlphabet kByteAlphabet;

}  // namespace detail

// "\x20the" -> "Ġthe"
inline std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char c : bytes) {
    const int code = detail::kByteAlphabet.letter[static_cast<unsigned char>(c)];
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else {
      text += static_cast<char>(0xC0 | (code >> 6));
      text += static_cast<char>(0x80 | (code & 0x3F));
    }
  }
  return text;
}

// The inverse; empty if a character is not in the alphabet.
inline std::optional<std::string> from_byte_alphabet(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned code = static_cast<unsigned char>(text[i]);
    if (code >= 0x80) {
      if ((code & 0xE0) != 0xC0 || i + 1 == text.size()) return std::nullopt;
      code = (code & 0x1F) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3F);
    }
    if (code >= detail::kByteAlphabet.byte.size() || detail::kByteAlphabet.byte[code] < 0)
      return std::nullopt;
    bytes += static_cast<char>(detail::kByteAlphabet.byte[code]);
  }
  return bytes;
}

}  // namespace kintsugi
