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
#include <bit>
#include <cmath>

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

namespace {

// The first 32 bits of the fractional parts of the roots of the first primes.
template <std::size_t Count, class Root>
std::array<std::uint32_t, Count> prime_roots(Root&& root) {
  std::array<std::uint32_t, Count> words{};
  std::size_t found = 0;
  for (int n = 2; found < Count; ++n) {
    bool prime = true;
    for (int d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
    if (!prime) continue;
    const long double value = root(static_cast<long double>(n));
    words[found++] = static_cast<std::uint32_t>((value - std::floor(value)) * 4294967296.0L);
  }
  return words;
}

void sha256_block(std::array<std::uint32_t, 8>& state, const unsigned char* block) {
  static const auto kRounds =
      prime_roots<64>([](long double n) -> long double { return std::cbrt(n); });
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t k = 0; k < 4; ++k) w[i] = w[i] << 8 | block[4 * i + k];
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t first = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
    const std::uint32_t second =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first;
    d = c, c = b, b = a, a = first + second;
  }
  const std::array<std::uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state[i] += added[i];
}

}  // namespace

std::string sha256_hex(std::string_view bytes) {
  auto state = prime_roots<8>([](long double n) { return std::sqrt(n); });
  std::string text(bytes);
  text.push_back('\x80');
  while (text.size() % 64 != 56) text.push_back('\0');
  for (int shift = 56; shift >= 0; shift -= 8)
    text.push_back(static_cast<char>(static_cast<std::uint64_t>(bytes.size()) * 8 >> shift));
  for (std::size_t at = 0; at < text.size(); at += 64)
    sha256_block(state, reinterpret_cast<const unsigned char*>(text.data()) + at);
  std::string digits;
  for (const std::uint32_t word : state) digits += fmt::format("{:08x}", word);
  return digits;
}

}  // namespace kintsugi
