#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace kintsugi::protobuf {

// The fields of a protobuf message, appended to its bytes: a field is a key (number and wire type)
// and a value.

template <std::unsigned_integral T>
void put_fixed(std::string& out, T value) {  // little-endian
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i) & 0xFF);
}

inline void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  out += static_cast<char>(value);
}

enum WireType : unsigned { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

inline void put_key(std::string& out, unsigned field, WireType type) {
  put_varint(out, field << 3 | static_cast<unsigned>(type));
}

inline void put_number(std::string& out, unsigned field, std::int64_t value) {
  put_key(out, field, kVarint);
  put_varint(out, static_cast<std::uint64_t>(value));
}

inline void put_double(std::string& out, unsigned field, double value) {
  put_key(out, field, kFixed64);
  put_fixed(out, std::bit_cast<std::uint64_t>(value));
}

inline void put_float(std::string& out, unsigned field, float value) {
  put_key(out, field, kFixed32);
  put_fixed(out, std::bit_cast<std::uint32_t>(value));
}

inline void put_bytes(std::string& out, unsigned field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

}  // namespace kintsugi::protobuf
