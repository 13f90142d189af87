#include "core/yaml_reader.h"

#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <string>

namespace kintsugi {
namespace {

TEST(YamlScalars, Numbers) {
  EXPECT_EQ(YamlScalar<std::int64_t>::parse("4M"), 4'000'000);
  EXPECT_EQ(YamlScalar<std::int64_t>::parse("1e3"), 1000);
  EXPECT_EQ(YamlScalar<std::int64_t>::parse("-5"), -5);
  EXPECT_EQ(YamlScalar<std::int64_t>::parse("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(YamlScalar<std::uint64_t>::parse("18446744073709551615"), UINT64_MAX);
  EXPECT_THROW(YamlScalar<std::uint64_t>::parse("-1"), UserError);
  EXPECT_THROW(YamlScalar<std::int64_t>::parse("1.5"), UserError);
  for (const char* text : {"nan", ".nan", "NaN", "inf", ".inf", "-.inf", "1e999"}) {
    EXPECT_THROW(YamlScalar<double>::parse(text), UserError) << text;
    EXPECT_THROW(YamlScalar<std::int64_t>::parse(text), UserError) << text;
  }
  EXPECT_EQ(YamlScalar<std::optional<std::int64_t>>::parse("auto"), std::nullopt);
  EXPECT_EQ(YamlScalar<std::optional<std::int64_t>>::parse("8"), 8);
}

TEST(YamlScalars, TextsSurviveWriting) {
  for (const std::string text : {"plain",
                                 "runs/demo-1.yaml",
                                 "null",
                                 "~",
                                 "true",
                                 "- dash",
                                 "-x",
                                 "a: b",
                                 "#x",
                                 "a # b",
                                 " spaces ",
                                 "quote\"s",
                                 "back\\slash",
                                 "it's",
                                 "[1]",
                                 "{a}",
                                 "*x",
                                 "&x",
                                 "!t",
                                 "%d",
                                 "@x",
                                 "`x",
                                 "|",
                                 ">",
                                 "Ångström/数据",
                                 "12",
                                 "...",
                                 "---",
                                 "?",
                                 "a,b"}) {
    const YAML::Node tree = YAML::Load("k: " + YamlScalar<std::string>::format(text) + "\n");
    ASSERT_TRUE(tree["k"].IsScalar()) << text;
    EXPECT_EQ(tree["k"].Scalar(), text);
  }
  EXPECT_THROW(YamlScalar<std::string>::parse(""), UserError);
  EXPECT_THROW(YamlScalar<std::string>::parse("a\nb"), UserError);
  EXPECT_THROW(YamlScalar<std::string>::parse(std::string("a\0b", 3)), UserError);
}

TEST(YamlScalars, Ranges) {
  EXPECT_EQ(at_least(1).text(), "at least 1");
  EXPECT_EQ(above(0).text(), "above 0");
  EXPECT_EQ(kFraction.text(), "at least 0 and below 1");
  EXPECT_TRUE(kFraction.holds(0));
  EXPECT_FALSE(kFraction.holds(1));
  EXPECT_FALSE(above(0).holds(0));
  EXPECT_TRUE(between(0, 3).holds(3));
}

}  // namespace
}  // namespace kintsugi
