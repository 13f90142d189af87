#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "data/stores/token_store.h"

namespace kintsugi {

// Converts hexadecimal digits, "4d4d 49", to bytes.
inline std::string from_hex(const std::string& text) {
  std::string bytes, digits;
  for (const char c : text)
    if (c != ' ') digits += c;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

inline void put_little_endian(std::string& bytes, std::uint64_t value, int size) {
  for (int i = 0; i < size; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFF);
}

// Writes PREFIX.bin and PREFIX.idx byte by byte from the description of Megatron's format,
// independently of the writer under test. Without `documents`, each sequence is a document.
inline void write_megatron(const std::string& prefix, TokenType type,
                           const std::vector<std::vector<std::int32_t>>& sequences,
                           std::vector<std::uint64_t> documents = {}) {
  const int width = type == TokenType::U8 ? 1 : type == TokenType::U16 ? 2 : 4;
  std::string bin, lengths, pointers, index("MMIDIDX\0\0", 9);
  if (documents.empty())
    for (std::size_t d = 0; d <= sequences.size(); ++d) documents.push_back(d);
  for (const auto& sequence : sequences) {
    put_little_endian(lengths, sequence.size(), 4);
    put_little_endian(pointers, bin.size(), 8);
    for (const std::int32_t id : sequence)
      put_little_endian(bin, static_cast<std::uint32_t>(id), width);
  }
  put_little_endian(index, 1, 8);
  put_little_endian(index, static_cast<std::uint64_t>(type), 1);
  put_little_endian(index, sequences.size(), 8);
  put_little_endian(index, documents.size(), 8);
  index += lengths + pointers;
  for (const std::uint64_t boundary : documents) put_little_endian(index, boundary, 8);
  std::ofstream(prefix + ".bin", std::ios::binary) << bin;
  std::ofstream(prefix + ".idx", std::ios::binary) << index;
}

}  // namespace kintsugi
