#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "data/corpora/record_reader.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string text_of(const std::string& line, const std::string& key = "text") {
  std::string text, prompt;
  parse_json_line(line, key, "", text, prompt);
  return text;
}

struct Complaint {
  std::string message;
  std::size_t byte;
};
Complaint complaint_about(const std::string& line, const std::string& prompt_key = "") {
  std::string text, prompt;
  try {
    parse_json_line(line, "text", prompt_key, text, prompt);
  } catch (const JsonLineError& error) {
    return {error.what(), error.byte()};
  }
  ADD_FAILURE() << "accepted: " << line;
  return {"", 0};
}

TEST(JsonLine, FindsTheKey) {
  EXPECT_EQ(text_of(R"({"text":"a"})"), "a");
  EXPECT_EQ(text_of(R"( { "id" : 1 , "text" : "a b" , "x":null } )"), "a b");
  EXPECT_EQ(text_of(R"({"meta":{"text":"no"},"list":[{"text":"no"}],"text":"yes"})"), "yes");
  EXPECT_EQ(text_of(R"({"text":"first","text":"last"})"), "last");
  EXPECT_EQ(text_of(R"({"a\"b":"x"})", "a\"b"), "x");
  EXPECT_EQ(text_of("{\"\\u0074ext\":\"x\"}"), "x");
  EXPECT_EQ(text_of(R"({"text":""})"), "");
}

TEST(JsonLine, Escapes) {
  EXPECT_EQ(text_of(R"({"text":"\"\\\/\b\f\n\r\t"})"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(text_of(R"({"text":"\u00e9\u20AC\ud83d\ude00"})"), "é€😀");
  EXPECT_EQ(text_of(R"({"text":"\u0000"})"), std::string(1, '\0'));
  EXPECT_EQ(text_of("{\"text\":\"0123456789é0123456\\n789abcdefghij\"}"),
            "0123456789é0123456\n789abcdefghij");
}

TEST(JsonLine, TwoKeys) {
  std::string text, prompt;
  parse_json_line(R"({"answer":"A","question":"Q"})", "answer", "question", text, prompt);
  EXPECT_EQ(text, "A");
  EXPECT_EQ(prompt, "Q");
  EXPECT_THAT(complaint_about(R"({"text":"A"})", "question").message, HasSubstr("'question'"));
}

TEST(JsonLine, SaysWhatIsWrongAndWhere) {
  EXPECT_THAT(complaint_about(R"({"content":"a","id":1})").message,
              testing::AllOf(HasSubstr("no key 'text'"), HasSubstr("'content', 'id'")));
  EXPECT_THAT(complaint_about("{}").message, HasSubstr("has no keys"));
  EXPECT_THAT(complaint_about("{ ").message, HasSubstr("ends inside the object"));
  EXPECT_THAT(complaint_about(R"({"text":null})").message, HasSubstr("not a string"));
  EXPECT_EQ(complaint_about(R"({"text":null})").byte, 9u);
  EXPECT_THAT(complaint_about(R"({"text":["a"]})").message, HasSubstr("not a string"));
  EXPECT_THAT(complaint_about(R"(["text"])").message, HasSubstr("object"));
  EXPECT_THAT(complaint_about(R"({"text":"a)").message, HasSubstr("inside a string"));
  EXPECT_THAT(complaint_about(R"({"text":"a"} x)").message,
              HasSubstr("after the end of the object"));
  EXPECT_EQ(complaint_about(R"({"text":"a"} x)").byte, 14u);
  EXPECT_THAT(complaint_about("{\"text\":\"a\xff\"}").message, HasSubstr("UTF-8"));
  EXPECT_EQ(complaint_about("{\"text\":\"a\xff\"}").byte, 11u);
  EXPECT_THAT(complaint_about("{\"text\":\"a\tb\"}").message, HasSubstr("control"));
  EXPECT_THAT(complaint_about(R"({"text":"\ud83d"})").message, HasSubstr("surrogate"));
  EXPECT_THAT(complaint_about(R"({"text":"\ude00"})").message, HasSubstr("surrogate"));
  EXPECT_THAT(complaint_about(R"({"text":"\ud83d\u0041"})").message, HasSubstr("surrogate"));
  EXPECT_THAT(complaint_about(R"({"text":"\x41"})").message, HasSubstr("escape"));
  EXPECT_THAT(complaint_about(R"({"n":01,"text":"a"})").message, HasSubstr("expected"));
  EXPECT_THAT(complaint_about("{\"x\":" + std::string(100'000, '[')).message, HasSubstr("deeper"));
  complaint_about("");
  complaint_about(std::string("{\"text\":\"\\\0\"}", 13));
}

// Accepts exactly the lines that nlohmann's parser accepts, with the same value.
TEST(JsonLine, AgreesWithAnotherParser) {
  const std::vector<std::string> seeds = {
      R"({"text":"Some words, \"quoted\" and \u00e9\ud83d\ude00 end","n":-1.5e+10,"a":[1,[],{}]})",
      "{\"b\":true,\"text\":\"h\xc3\xa9llo w\xc3\xb6rld \xe2\x82\xac \xf0\x9f\x98\x80 more "
      "text\",\"z\":null}",
      R"({"x":{"text":"inner","y":[0,0.5,1e5,false]},"text":"0123456789abcdef\n\t"})"};
  const std::string bytes =
      "\"\\{}[]:,0123456789.eE+-utfnrl \t\n\xc3\xa9\xed\xa0\x80\xf4\x90\xff\x01";
  std::mt19937 random(11);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 60'000; ++round) {
    std::string line = seeds[random() % seeds.size()];
    for (unsigned change = random() % 4; change > 0; --change) {
      const std::size_t at = random() % line.size();
      const char byte = bytes[random() % bytes.size()];
      if (random() % 3 == 0)
        line.erase(at, 1);
      else if (random() % 2 == 0)
        line.insert(at, 1, byte);
      else
        line[at] = byte;
    }
    json expected;
    try {
      expected = json::parse(line);
    } catch (const json::out_of_range&) {
      continue;  // 1e999: valid by the grammar, too large for nlohmann
    } catch (const json::parse_error&) {
    }
    const bool good =
        expected.is_object() && expected.contains("text") && expected["text"].is_string();
    std::string text, prompt;
    bool parsed = true;
    try {
      parse_json_line(line, "text", "", text, prompt);
    } catch (const JsonLineError& error) {
      parsed = false;
      EXPECT_LE(error.byte(), line.size() + 1);
    }
    // A repeated key, first not a string, then one: an error here; nlohmann takes the last value.
    if (good && !parsed && line.find("\"text\"") != line.rfind("\"text\"")) continue;
    ASSERT_EQ(parsed, good) << line;
    if (good) {
      ASSERT_EQ(text, expected["text"].get<std::string>()) << line;
    }
    ++(good ? accepted : refused);
  }
  EXPECT_GT(accepted, 10'000);
  EXPECT_GT(refused, 10'000);
}

}  // namespace
}  // namespace kintsugi
