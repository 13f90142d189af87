#include "core/gzip.h"

#include <gtest/gtest.h>

#include <random>

#include "support/errors.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

std::string random_text(std::size_t bytes, int letters) {
  std::mt19937 random(9);
  std::string text(bytes, ' ');
  for (char& one : text) one = static_cast<char>(random() % static_cast<unsigned>(letters));
  return text;
}

TEST(Gzip, UnpacksWhatItPacked) {
  for (const std::string& text :
       {std::string(), std::string("x"), std::string(5'000'000, 'a'), random_text(3'000'000, 256),
        random_text(1 << 20, 4), random_text((1 << 21) + 1, 2)}) {
    const std::string packed = gzipped(text);
    EXPECT_TRUE(is_gzip(packed));
    EXPECT_EQ(gunzipped(packed, text.size(), "test"), text);
  }
  EXPECT_FALSE(is_gzip("{}"));
}

TEST(Gzip, MembersFollowEachOther) {
  EXPECT_EQ(gunzipped(gzipped("one ") + gzipped("two"), 100, "test"), "one two");
}

TEST(Gzip, RefusesDamageAndTooMuch) {
  const std::string packed = gzipped(random_text(100'000, 256));
  EXPECT_THROW(gunzipped(packed, 99'999, "test"), UserError);
  EXPECT_THROW(gunzipped(packed.substr(0, packed.size() - 1), 1 << 20, "test"), UserError);
  EXPECT_THROW(gunzipped("", 1 << 20, "test"), UserError);
  EXPECT_THROW(gunzipped(packed + "x", 1 << 20, "test"), UserError);
  std::string damaged = packed;
  damaged[packed.size() - 6] ^= 1;  // of the checksum
  EXPECT_THROW(gunzipped(damaged, 1 << 20, "test"), UserError);
}

class GzipProgram : public ProgramTest {};

TEST_F(GzipProgram, OtherProgramsReadIt) {
  directory_.write("text.gz", gzipped("hello\n"));
  const Outcome outcome = run_in_shell("gzip -dc text.gz");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "hello\n");
}

}  // namespace
}  // namespace kintsugi
