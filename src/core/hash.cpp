#include "core/hash.h"

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes its own AVX-512 intrinsics for uses of uninitialised values (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#define XXH_INLINE_ALL
#include <fmt/core.h>
#include <xxhash.h>
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

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

using Sha256State = std::array<std::uint32_t, 8>;

const std::array<std::uint32_t, 64>& sha256_rounds() {
  static const auto rounds =
      prime_roots<64>([](long double n) -> long double { return std::cbrt(n); });
  return rounds;
}

void sha256_block(Sha256State& state, const unsigned char* block) {
  const std::array<std::uint32_t, 64>& rounds = sha256_rounds();
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
                                ((e & f) ^ (~e & g)) + rounds[i] + w[i];
    const std::uint32_t second =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first;
    d = c, c = b, b = a, a = first + second;
  }
  const Sha256State added = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state[i] += added[i];
}

void sha256_portable(Sha256State& state, const unsigned char* data, std::size_t blocks) {
  for (; blocks > 0; --blocks, data += 64) sha256_block(state, data);
}

using Sha256Blocks = void (*)(Sha256State&, const unsigned char*, std::size_t);

#ifdef __x86_64__
// The registers of the instructions have a, b, e, f and c, d, g, h, from the highest element.
__attribute__((target("sha,sse4.1"))) void sha256_x86(Sha256State& state, const unsigned char* data,
                                                      std::size_t blocks) {
  const auto int_of = [](std::uint32_t value) { return static_cast<int>(value); };
  const auto& s = state;
  __m128i abef = _mm_set_epi32(int_of(s[0]), int_of(s[1]), int_of(s[4]), int_of(s[5]));
  __m128i cdgh = _mm_set_epi32(int_of(s[2]), int_of(s[3]), int_of(s[6]), int_of(s[7]));
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  const std::uint32_t* const rounds = sha256_rounds().data();
  for (; blocks > 0; --blocks, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];  // 16 words of the message, of which four are replaced at a time
    for (int i = 0; i < 4; ++i)
      w[i] =
          _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data) + i), big_endian);
    for (int i = 0; i < 16; ++i) {
      const __m128i k = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rounds) + i);
      const __m128i sum = _mm_add_epi32(w[i & 3], k);
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
      if (i >= 12) continue;
      const __m128i last = w[(i + 3) & 3], before = w[(i + 2) & 3];
      const __m128i next = _mm_add_epi32(_mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]),
                                         _mm_alignr_epi8(last, before, 4));
      w[i & 3] = _mm_sha256msg2_epu32(next, last);
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  alignas(16) std::uint32_t first[4], second[4];
  _mm_store_si128(reinterpret_cast<__m128i*>(first), abef);
  _mm_store_si128(reinterpret_cast<__m128i*>(second), cdgh);
  state = {first[3], first[2], second[3], second[2], first[1], first[0], second[1], second[0]};
}

Sha256Blocks choose_sha256() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool has = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 29 & 1) != 0;
  return has && __builtin_cpu_supports("sse4.1") ? sha256_x86 : sha256_portable;
}
#else
Sha256Blocks choose_sha256() { return sha256_portable; }
#endif

void sha256_blocks(Sha256State& state, const unsigned char* data, std::size_t blocks) {
  static const Sha256Blocks chosen = choose_sha256();
  chosen(state, data, blocks);
}

}  // namespace

Sha256::Sha256() : state_(prime_roots<8>([](long double n) { return std::sqrt(n); })) {}

void Sha256::update(const void* data, std::size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(data);
  const std::size_t used = bytes_ % block_.size();
  bytes_ += bytes;
  if (used > 0) {
    const std::size_t more = std::min(bytes, block_.size() - used);
    std::memcpy(block_.data() + used, from, more);
    if (used + more < block_.size()) return;
    sha256_blocks(state_, block_.data(), 1);
    from += more, bytes -= more;
  }
  sha256_blocks(state_, from, bytes / block_.size());
  const std::size_t rest = bytes % block_.size();
  if (rest > 0) std::memcpy(block_.data(), from + bytes - rest, rest);
}

std::string Sha256::hex() const {
  Sha256 end = *this;
  std::array<unsigned char, 2 * 64> padding{0x80};
  const std::size_t used = bytes_ % block_.size();
  const std::size_t size = (used < 56 ? 64 : 128) - used;
  for (std::size_t i = 0; i < 8; ++i)
    padding.at(size - 1 - i) = static_cast<unsigned char>(bytes_ * 8 >> (8 * i));
  end.update(padding.data(), size);
  std::string digits;
  for (const std::uint32_t word : end.state_) digits += fmt::format("{:08x}", word);
  return digits;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes.data(), bytes.size());
  return hash.hex();
}

}  // namespace kintsugi
