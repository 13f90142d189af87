#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kintsugi {

// XXH3, 64 bits: for file checksums and keys. Not cryptographic.
std::uint64_t hash64(const void* data, std::size_t bytes, std::uint64_t seed = 0);
inline std::uint64_t hash64(std::string_view text) { return hash64(text.data(), text.size()); }

// The same hash, computed incrementally.
class StreamHash {
 public:
  StreamHash();
  ~StreamHash();
  StreamHash(const StreamHash&) = delete;
  StreamHash& operator=(const StreamHash&) = delete;
  void update(const void* data, std::size_t bytes);
  std::uint64_t digest() const;

 private:
  void* state_;
};

std::string hex64(std::uint64_t value);

// CRC-32C (Castagnoli), as in RFC 3720: for file formats that ask for it.
std::uint32_t crc32c(std::string_view bytes);

// SHA-256 (FIPS 180-4), 64 hexadecimal digits: where a file format asks for it.
std::string sha256_hex(std::string_view bytes);

// The same hash, computed incrementally; with the processor's instructions for it, if it has some.
class Sha256 {
 public:
  Sha256();
  void update(const void* data, std::size_t bytes);
  std::string hex() const;

 private:
  std::array<std::uint32_t, 8> state_;
  std::array<unsigned char, 64> block_{};  // the last one, not yet full
  std::uint64_t bytes_ = 0;
};

}  // namespace kintsugi
