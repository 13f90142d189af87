#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <random>

#include "data/corpora/input_files.h"
#include "support/compress.h"
#include "support/errors.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string noise(std::size_t bytes) {
  std::mt19937 random(3);
  std::string text(bytes, ' ');
  for (char& c : text) c = static_cast<char>('a' + random() % 26);
  return text;
}

std::string read_all(TextStream& stream, std::size_t buffer_size = 10'000) {
  std::string text, buffer(buffer_size, '\0');
  while (const std::size_t got = stream.read(buffer)) text.append(buffer, 0, got);
  return text;
}

class TextStreamTest : public testing::Test {
 protected:
  std::string content(const std::string& bytes, std::size_t buffer_size = 10'000) {
    TextStream stream(directory_.write("file", bytes));
    std::string text = read_all(stream, buffer_size);
    EXPECT_EQ(stream.bytes_read(), bytes.size());
    EXPECT_EQ(stream.bytes_total(), bytes.size());
    return text;
  }
  std::string complaint(const std::string& bytes) {
    return user_error_of([&] { content(bytes); });
  }
  TemporaryDirectory directory_;
};

TEST_F(TextStreamTest, PlainGzipAndZstd) {
  for (const std::size_t size : {0u, 1u, 3u, 4u, 1000u, 1'000'000u}) {
    const std::string text = noise(size);
    for (const std::size_t buffer_size : {7u, 65536u}) {
      if (size > 1000 && buffer_size == 7) continue;
      EXPECT_EQ(content(text, buffer_size), text);
      EXPECT_EQ(content(gzip(text), buffer_size), text);
      EXPECT_EQ(content(zstd(text), buffer_size), text);
    }
  }
}

TEST_F(TextStreamTest, SeveralMembersAndFrames) {
  const std::string a = noise(300'000), b = "short", c = "";
  EXPECT_EQ(content(gzip(a) + gzip(c) + gzip(b)), a + b);
  EXPECT_EQ(content(zstd(a) + zstd(c) + zstd(b)), a + b);
  const std::string skippable = std::string("\x50\x2a\x4d\x18\x03\0\0\0xyz", 11);
  EXPECT_EQ(content(skippable + zstd(b) + skippable), b);
  EXPECT_EQ(content(zstd(std::string(5'000'000, 'x'))).size(), 5'000'000u)
      << "text that the decompressor still holds";
}

TEST_F(TextStreamTest, TheGzipProgram) {
  const std::string text = noise(200'000);
  const std::string file = directory_.write("tool", text);
  ASSERT_EQ(std::system(("gzip -9 '" + file + "'").c_str()), 0);
  TextStream stream(file + ".gz");
  EXPECT_EQ(read_all(stream), text);
}

TEST_F(TextStreamTest, SkipsText) {
  const std::string text = noise(700'000);
  for (const std::string& bytes : {text, gzip(text), zstd(text)}) {
    const std::string file = directory_.write("skip", bytes);
    TextStream stream(file);
    std::string start(1000, '\0');
    ASSERT_EQ(stream.read(start), 1000u);
    stream.skip(500'000);
    EXPECT_EQ(read_all(stream), text.substr(501'000));
  }
  TextStream packed(directory_.write("short", zstd("abc")));
  EXPECT_THAT(user_error_of([&] { packed.skip(10); }), HasSubstr("changed"));
}

TEST_F(TextStreamTest, NamesFileAndByteOfDamage) {
  const std::string text = noise(300'000);
  for (std::string packed : {gzip(text), zstd(text)}) {
    EXPECT_THAT(complaint(packed.substr(0, 50'000)),
                AllOf(HasSubstr("file"), HasSubstr("byte 50000"), HasSubstr("truncated")));
    EXPECT_THAT(complaint(packed.substr(0, packed.size() - 1)), HasSubstr("truncated"));
    EXPECT_THAT(complaint(packed + "garbage"), AllOf(HasSubstr("damaged"), HasSubstr("byte")));
    std::string flipped = packed;
    flipped[packed.size() - 3] ^= 0x55;  // the checksum
    EXPECT_THAT(complaint(flipped), HasSubstr("damaged"));
  }
  EXPECT_THAT(user_error_of([&] { TextStream(directory_ / "nosuch"); }), HasSubstr("nosuch"));
  EXPECT_THAT(user_error_of([&] { TextStream(directory_.path()); }), HasSubstr("directory"));
}

TEST_F(TextStreamTest, DamageNeverCrashes) {
  const std::string text = noise(2000) + std::string(2000, 'z');
  std::mt19937 random(5);
  int read = 0, refused = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string bytes = round % 2 == 0 ? gzip(text) : zstd(text);
    for (unsigned change = random() % 4; change > 0; --change)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    std::filesystem::remove(directory_ / "fuzz");
    try {
      TextStream stream(directory_.write("fuzz", bytes));
      read_all(stream);
      ++read;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("fuzz"));
      ++refused;
    }
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 300);
}

// A pipe without a writer: opening it would block for ever.
TEST_F(TextStreamTest, APipeIsRefusedAtOnce) {
  const std::string path = (directory_ / "pipe").string();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(user_error_of([&] { TextStream stream(path); }),
              HasSubstr("pipe is a pipe, a file is needed"));
}

// Read as text, such files would silently give a wrong store. These are the magic bytes.
TEST_F(TextStreamTest, OtherFormatsAreNamed) {
  const auto complaint = [&](const std::string& bytes) {
    return user_error_of([&] { content(bytes + noise(100)); });
  };
  EXPECT_THAT(complaint(std::string("\xFD"
                                    "7zXZ\0\0\x04",
                                    8)),
              HasSubstr("xz"));
  EXPECT_THAT(complaint("BZh91AY&SY"), AllOf(HasSubstr("file"), HasSubstr("bzip2")));
  EXPECT_THAT(complaint("PAR1"), HasSubstr("Parquet"));
  EXPECT_THAT(complaint("PK\x03\x04"), HasSubstr("zip"));
  EXPECT_EQ(content("BZh9 is how it begins"), "BZh9 is how it begins");
  EXPECT_EQ(content("PAR"), "PAR");
}

}  // namespace
}  // namespace kintsugi
