#include "data/dedup/minhash.h"

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes its own AVX-512 intrinsics for uses of uninitialised values (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <random>

#include "core/error.h"

namespace kintsugi {
namespace {

constexpr std::uint64_t kMersenne61 = (std::uint64_t{1} << 61) - 1;

// NumPy's RandomState: randint(low, 2^61 - 1), two outputs per number, redrawn if too large.
std::vector<std::uint64_t> numbers_from(std::mt19937& random, std::uint64_t low,
                                        std::size_t count) {
  std::vector<std::uint64_t> numbers(count);
  for (std::uint64_t& number : numbers) {
    do {
      number = std::uint64_t{random()} << 32;
      number = (number | random()) & kMersenne61;
    } while (number > kMersenne61 - 1 - low);
    number += low;
  }
  return numbers;
}

std::array<std::uint32_t, 5> sha1(std::string_view bytes) {
  std::array<std::uint32_t, 5> state = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0};
  std::string padded(bytes);
  padded += '\x80';
  padded.resize((padded.size() + 8 + 63) / 64 * 64 - 8);
  for (int shift = 56; shift >= 0; shift -= 8)
    padded += static_cast<char>(bytes.size() * 8 >> shift);
  for (std::size_t block = 0; block < padded.size(); block += 64) {
    std::array<std::uint32_t, 80> words;
    for (std::size_t i = 0; i < 16; ++i) {
      std::uint32_t word;
      std::memcpy(&word, padded.data() + block + 4 * i, 4);
      words[i] = __builtin_bswap32(word);
    }
    for (std::size_t i = 16; i < 80; ++i)
      words[i] = std::rotl(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1);
    auto [a, b, c, d, e] = state;
    for (std::size_t i = 0; i < 80; ++i) {
      const auto [f, k] = i < 20   ? std::pair{(b & c) | (~b & d), 0x5A827999u}
                          : i < 40 ? std::pair{b ^ c ^ d, 0x6ED9EBA1u}
                          : i < 60 ? std::pair{(b & c) | (b & d) | (c & d), 0x8F1BBCDCu}
                                   : std::pair{b ^ c ^ d, 0xCA62C1D6u};
      const std::uint32_t next = std::rotl(a, 5) + f + e + k + words[i];
      e = d, d = c, c = std::rotl(b, 30), b = a, a = next;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e;
  }
  return state;
}

// Four values at a time.
using Lanes = std::uint64_t __attribute__((vector_size(32)));
using SignedLanes = std::int64_t __attribute__((vector_size(32)));

Lanes all_lanes(std::uint64_t value) { return Lanes{value, value, value, value}; }

template <int bits>
Lanes hashed(Lanes a, std::uint64_t x, Lanes b) {
  const Lanes mersenne = all_lanes(kMersenne61);
  const Lanes sum = a * x + b;
  Lanes value = (sum & mersenne) + (sum >> 61);  // at most 2^61 + 6
  const auto too_large = std::bit_cast<SignedLanes>(value) >= std::bit_cast<SignedLanes>(mersenne);
  value -= std::bit_cast<Lanes>(too_large) & mersenne;
  if constexpr (bits == 32) value &= all_lanes(0xFFFFFFFF);
  return value;
}

constexpr std::size_t kLanes = 4, kVectors = 2;  // that are kept in registers

template <int bits>
void minima(std::span<const std::uint64_t> hashes, const std::uint64_t* a, const std::uint64_t* b,
            std::uint64_t* result) {
  Lanes own_a[kVectors], own_b[kVectors], best[kVectors];
  std::memcpy(own_a, a, sizeof own_a);
  std::memcpy(own_b, b, sizeof own_b);
  for (Lanes& one : best) one = all_lanes(INT64_MAX);
  for (const std::uint64_t x : hashes)
    for (std::size_t i = 0; i < kVectors; ++i) {
      const Lanes value = hashed<bits>(own_a[i], x, own_b[i]);
      const auto less =  // of positive numbers
          std::bit_cast<SignedLanes>(value) < std::bit_cast<SignedLanes>(best[i]);
      best[i] = less ? value : best[i];
    }
  std::memcpy(result, best, sizeof best);
}

}  // namespace

std::uint64_t shingle_hash(std::string_view shingle, const MinHashShape& shape) {
  if (shape.hash == ShingleHash::Sha1) {
    const auto state = sha1(shingle);
    const std::uint64_t low = __builtin_bswap32(state[0]), high = __builtin_bswap32(state[1]);
    return shape.bits == 32 ? low : high << 32 | low;
  }
  return shape.bits == 32 ? XXH32(shingle.data(), shingle.size(), 0)
                          : XXH64(shingle.data(), shingle.size(), 0);
}

MinHash::MinHash(const MinHashShape& shape)
    : shape_(shape), values_(static_cast<std::size_t>(shape.bands * shape.rows)) {
  KINTSUGI_CHECK(shape.ngram > 0 && values_ > 0 && (shape.bits == 32 || shape.bits == 64),
                 "a shape of {} words, {} bands, {} rows, {} bits", shape.ngram, shape.bands,
                 shape.rows, shape.bits);
  std::mt19937 random(1);
  a_ = numbers_from(random, 1, values_);
  b_ = numbers_from(random, 0, values_);
  constexpr std::size_t kBlock = kLanes * kVectors;
  const std::size_t padded = (values_ + kBlock - 1) / kBlock * kBlock;
  a_.resize(padded);
  b_.resize(padded);
}

void MinHash::hash_words(std::string_view text, Scratch& scratch) const {
  make_dedup_text(text, scratch.text);
  const auto ngram = static_cast<std::size_t>(shape_.ngram);
  const std::size_t words = scratch.text.words.size();
  for (std::size_t i = 0; i + ngram <= words; ++i)
    scratch.hashes.push_back(shingle_hash(scratch.text.slice(i, ngram), shape_));
}

void MinHash::hash_characters(std::string_view text, Scratch& scratch) const {
  const auto next = [&](std::size_t at) {
    for (++at; at < text.size() && (text[at] & 0xC0) == 0x80;) ++at;
    return at;
  };
  std::size_t begin = 0, end = 0;
  for (int i = 0; i < shape_.ngram; ++i) {
    if (end >= text.size()) return;
    end = next(end);
  }
  while (true) {
    scratch.hashes.push_back(shingle_hash(text.substr(begin, end - begin), shape_));
    if (end == text.size()) return;
    begin = next(begin);
    end = next(end);
  }
}

bool MinHash::signature(std::string_view text, Scratch& scratch,
                        std::vector<std::uint64_t>& signature) const {
  scratch.hashes.clear();
  if (shape_.characters)
    hash_characters(text, scratch);
  else
    hash_words(text, scratch);
  if (scratch.hashes.empty()) return false;
  signature.resize(a_.size());
  for (std::size_t i = 0; i < a_.size(); i += kLanes * kVectors) {
    const auto compute = shape_.bits == 32 ? &minima<32> : &minima<64>;
    compute(scratch.hashes, &a_[i], &b_[i], &signature[i]);
  }
  signature.resize(values_);
  return true;
}

TextDigest text_digest(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.high64, hash.low64};
}

}  // namespace kintsugi
