#include "core/hash.h"

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes its own AVX-512 intrinsics for uses of uninitialised values (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#define XXH_INLINE_ALL
#include <fmt/core.h>
#include <xxhash.h>

#include <array>

#include "core/error.h"

namespace kintsugi {

std::uint64_t hash64(const void* data, std::size_t bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

StreamHash::StreamHash() : state_(XXH3_createState()) {
  KINTSUGI_CHECK(state_ != nullptr, "no memory for a hash state");
  XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_));
}

StreamHash::~StreamHash() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }

void StreamHash::update(const void* data, std::size_t bytes) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), data, bytes);
}

std::uint64_t StreamHash::digest() const {
  return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_));
}

std::string hex64(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::uint32_t crc32c(std::string_view bytes) {
  static const std::array<std::uint32_t, 256> table = [] {
    std::array<std::uint32_t, 256> rows{};
    for (std::uint32_t i = 0; i < rows.size(); ++i) {
      rows[i] = i;
      for (int bit = 0; bit < 8; ++bit)
        rows[i] = (rows[i] >> 1) ^ ((rows[i] & 1) != 0 ? 0x82F63B78u : 0u);
    }
    return rows;
  }();
  std::uint32_t crc = ~0u;
  for (const char byte : bytes)
    crc = table[(crc ^ static_cast<unsigned char>(byte)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

}  // namespace kintsugi
