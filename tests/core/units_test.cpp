#include "core/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "model/model_test_util.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;

TEST(UnitsParsing, Reals) {
  EXPECT_EQ(parse_real("0.1"), 0.1);
  EXPECT_EQ(parse_real("1e-3"), 1e-3);
  EXPECT_EQ(parse_real("1E+3"), 1e3);
  EXPECT_EQ(parse_real("-2.5"), -2.5);
  EXPECT_EQ(parse_real("+4"), 4.0);
  EXPECT_EQ(parse_real(" 7 "), 7.0);
  EXPECT_EQ(parse_real("1_000.5"), 1000.5);
}

TEST(UnitsParsing, Counts) {
  EXPECT_EQ(parse_count("500"), 500);
  EXPECT_EQ(parse_count("4M"), 4'000'000);
  EXPECT_EQ(parse_count("2k"), 2000);
  EXPECT_EQ(parse_count("2K"), 2000);
  EXPECT_EQ(parse_count("1.5T"), 1'500'000'000'000);
  EXPECT_EQ(parse_count("34B"), 34'000'000'000);
  EXPECT_EQ(parse_count("3G"), 3'000'000'000);
  EXPECT_EQ(parse_count("1e9"), 1'000'000'000);
  EXPECT_EQ(parse_count("1_000_000"), 1'000'000);
  EXPECT_EQ(parse_count("12 k"), 12'000);
  EXPECT_EQ(parse_count("-1"), -1);
  EXPECT_EQ(parse_count("4E"), 4'000'000'000'000'000'000);
}

TEST(UnitsParsing, Bytes) {
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("7B"), 7);
  EXPECT_EQ(parse_bytes("500MB"), 500'000'000);
  EXPECT_EQ(parse_bytes("64GiB"), std::int64_t{64} << 30);
  EXPECT_EQ(parse_bytes("1.5 KiB"), 1536);
  EXPECT_EQ(parse_bytes("2TiB"), std::int64_t{2} << 40);
}

TEST(UnitsParsing, Durations) {
  EXPECT_EQ(parse_duration_s("45"), 45.0);
  EXPECT_EQ(parse_duration_s("90s"), 90.0);
  EXPECT_EQ(parse_duration_s("30min"), 1800.0);
  EXPECT_EQ(parse_duration_s("1h30min"), 5400.0);
  EXPECT_EQ(parse_duration_s("1 h 30 min"), 5400.0);
  EXPECT_EQ(parse_duration_s("2d"), 172800.0);
  EXPECT_EQ(parse_duration_s("250ms"), 0.25);
  EXPECT_EQ(parse_duration_s("1.5h"), 5400.0);
}

TEST(UnitsParsing, Bools) {
  for (const char* text : {"true", "yes", "on", "True"}) EXPECT_TRUE(parse_bool(text)) << text;
  for (const char* text : {"false", "no", "off", "False"}) EXPECT_FALSE(parse_bool(text)) << text;
}

TEST(UnitsParsing, RefusesInvalidNumbers) {
  const auto refused = [](auto parse, std::vector<const char*> texts) {
    for (const char* text : texts)
      EXPECT_THAT(user_error_of([&] { parse(text); }), HasSubstr("'" + std::string(text) + "'"))
          << text;
  };
  refused(parse_real, {"", " ", "x", "1.2.3", "--1", "1e", "0x10", "nan", "inf", "1,5", "3M",
                       "1e999", "_1", "."});
  refused(parse_count, {"", "M", "4.5", "4MM", "4 M M", "1.0001k", "ten", "1e19",
                        "99999999999999999999", "1e-3", "5-3"});
  refused(parse_bytes, {"", "GiB", "1.5B", "64Gib", "64 gib", "0.3KiB", "1e30"});
  refused(parse_duration_s, {"", "min", "10 parsecs", "1h30", "30min 5", "1h x", "h1", "5 5s",
                             "-1s", "-1", "1h-5min", "nan", "inf", "1e300d", "1e999s"});
  refused(parse_bool, {"", "1", "TRUE!", "maybe"});
}

TEST(UnitsFormatting, Counts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1 k");
  EXPECT_EQ(format_count(1.24e6), "1.24 M");
  EXPECT_EQ(format_count(34.2e9), "34.2 B");
  EXPECT_EQ(format_count(1.5e12), "1.5 T");
  EXPECT_EQ(format_count(-2500), "-2.5 k");
}

TEST(UnitsFormatting, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1 KiB");
  EXPECT_EQ(format_bytes(3.5 * 0x1p30), "3.5 GiB");
  EXPECT_EQ(format_bytes(0x1p50), "1 PiB");
}

TEST(UnitsFormatting, Durations) {
  EXPECT_EQ(format_duration(3.46), "3.5 s");
  EXPECT_EQ(format_duration(12.3), "12 s");
  EXPECT_EQ(format_duration(59.7), "1 min 00 s");
  EXPECT_EQ(format_duration(65), "1 min 05 s");
  EXPECT_EQ(format_duration(3900), "1 h 05 min");
  EXPECT_EQ(format_duration(90000), "1 d 01 h");
  EXPECT_EQ(format_duration(NAN), "?");
  EXPECT_EQ(format_duration(INFINITY), "?");
}

// Wagner and Fischer's recursive definition, without the table.
int slow_distance(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return static_cast<int>(a.size() + b.size());
  return std::min({slow_distance(a.substr(1), b) + 1, slow_distance(a, b.substr(1)) + 1,
                   slow_distance(a.substr(1), b.substr(1)) + (a[0] != b[0])});
}

TEST(NearestWord, EditDistance) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("flaw", "lawn"), 2);
  std::mt19937 random(5);
  const auto word = [&] {
    std::string text(random() % 6, ' ');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int round = 0; round < 300; ++round) {
    const std::string a = word(), b = word();
    EXPECT_EQ(edit_distance(a, b), slow_distance(a, b)) << a << " " << b;
  }
}

TEST(NearestWord, IsATypoOrNothing) {
  const std::vector<std::string> keys = {"learning_rate", "warmup_steps", "lr", "seed", "steps"};
  EXPECT_EQ(nearest_word("waruup_step", keys), "warmup_steps");
  EXPECT_EQ(nearest_word("sead", keys), "seed");
  EXPECT_EQ(nearest_word("step", keys), "steps");
  EXPECT_EQ(nearest_word("lr", keys), "lr");
  EXPECT_EQ(nearest_word("zzzzzzzzzzzzzzzz", keys), "");
  EXPECT_EQ(nearest_word("nope", std::vector<std::string>{"alps", "leonardo"}), "");
  EXPECT_EQ(nearest_word("anything", std::vector<std::string>{}), "");
}

TEST(Units, NumbersOfThings) {
  EXPECT_EQ(format_number(1, "GPU"), "1 GPU");
  EXPECT_EQ(format_number(0, "GPU"), "0 GPUs");
  EXPECT_EQ(format_number(64, "step"), "64 steps");
}

}  // namespace
}  // namespace kintsugi
