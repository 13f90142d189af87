#include "core/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace kintsugi {
namespace {

// xxHash's own test values for XXH3_64bits.
TEST(Hash, KnownAnswers) {
  EXPECT_EQ(hash64(std::string_view()), 0x2d06800538d394c2ull);
  EXPECT_EQ(hash64(nullptr, 0), 0x2d06800538d394c2ull);
  EXPECT_EQ(hex64(hash64("")), "2d06800538d394c2");
}

std::vector<unsigned char> random_bytes(std::size_t count) {
  std::mt19937 random(17);
  std::vector<unsigned char> bytes(count);
  for (unsigned char& b : bytes) b = static_cast<unsigned char>(random());
  return bytes;
}

TEST(Hash, IncrementalHashingGivesTheSameHash) {
  // Sizes on both sides of XXH3's internal limits: 16, 128, 240 and its 256- and 1024-byte blocks.
  for (const std::size_t size :
       {0, 1, 3, 8, 16, 17, 128, 129, 240, 241, 256, 257, 1024, 1025, 100003}) {
    const auto bytes = random_bytes(size);
    const std::uint64_t whole = hash64(bytes.data(), bytes.size());
    for (const std::size_t chunk : {1, 7, 64, 255, 4096}) {
      StreamHash stream;
      for (std::size_t at = 0; at < size; at += chunk)
        stream.update(bytes.data() + at, std::min(chunk, size - at));
      EXPECT_EQ(stream.digest(), whole) << size << " bytes in chunks of " << chunk;
      EXPECT_EQ(stream.digest(), whole) << "digest() does not change the state";
    }
  }
}

// The examples of FIPS 180, whole and in pieces on both sides of a block of 64 bytes.
TEST(Hash, Sha256IsThatOfTheStandard) {
  for (const auto& [text, digest] : std::vector<std::pair<std::string, std::string>>{
           {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
           {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
           {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
           {std::string(1000000, 'a'),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"}}) {
    EXPECT_EQ(sha256_hex(text), digest);
    for (const std::size_t chunk : {1, 55, 63, 64, 65, 4096}) {
      Sha256 stream;
      for (std::size_t at = 0; at < text.size(); at += chunk)
        stream.update(text.data() + at, std::min(chunk, text.size() - at));
      EXPECT_EQ(stream.hex(), digest) << text.size() << " bytes in chunks of " << chunk;
      EXPECT_EQ(stream.hex(), digest) << "hex() does not change the state";
    }
  }
}

TEST(Hash, EveryByteAndTheSeedCount) {
  auto bytes = random_bytes(300);
  std::set<std::uint64_t> hashes = {hash64(bytes.data(), bytes.size())};
  for (unsigned char& b : bytes) {
    b ^= 1;
    hashes.insert(hash64(bytes.data(), bytes.size()));
    b ^= 1;
  }
  hashes.insert(hash64(bytes.data(), bytes.size(), 1));
  hashes.insert(hash64(bytes.data(), bytes.size() - 1));
  EXPECT_EQ(hashes.size(), 303u);
}

// RFC 3720, section B.4, and the check value of the CRC catalogues.
TEST(Hash, Crc32cOfPublishedVectors) {
  std::string counting, down;
  for (char i = 0; i < 32; ++i) {
    counting += i;
    down += static_cast<char>(31 - i);
  }
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(counting), 0x46dd794eu);
  EXPECT_EQ(crc32c(down), 0x113fdb5cu);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(Hash, HexHasSixteenDigits) {
  EXPECT_EQ(hex64(0), "0000000000000000");
  EXPECT_EQ(hex64(0xABCull), "0000000000000abc");
  EXPECT_EQ(hex64(~0ull), "ffffffffffffffff");
}

}  // namespace
}  // namespace kintsugi
