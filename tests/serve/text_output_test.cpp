// Streamed text: stop strings and whole characters.
#include "serve/text_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "data/tokenizers/unicode.h"
#include "support/errors.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;

struct Streamed {
  std::string text;
  std::vector<std::string> pieces;
  bool found;
};

// Adds the text in the given pieces until a stop string is found.
Streamed stream(const std::vector<std::string>& stop, const std::vector<std::string>& pieces) {
  StopStrings strings(stop);
  Streamed result{};
  for (const std::string& piece : pieces) {
    result.pieces.push_back(strings.add(piece));
    if (strings.found()) break;
  }
  result.pieces.push_back(strings.rest());
  for (const std::string& piece : result.pieces) result.text += piece;
  result.found = strings.found();
  return result;
}

TEST(StopStrings, EndTheTextBeforeThem) {
  const Streamed one = stream({"END"}, {"one E", "N", "D two"});
  EXPECT_EQ(one.text, "one ");
  EXPECT_TRUE(one.found);
  EXPECT_EQ(one.pieces[0], "one ") << "the E may begin the stop string";
  EXPECT_EQ(one.pieces[1], "");
  const Streamed none = stream({"END"}, {"one E", "N", " two E"});
  EXPECT_EQ(none.text, "one EN two E");
  EXPECT_FALSE(none.found);
  EXPECT_EQ(none.pieces[2], "EN two ") << "shown as soon as it cannot be one";
  EXPECT_EQ(stream({"\n"}, {"a\nb"}).text, "a");
  EXPECT_EQ(stream({"ab"}, {"ab"}).text, "");
  EXPECT_EQ(stream({"aab"}, {"a", "a", "a", "b"}).text, "a") << "the beginning overlaps itself";
  EXPECT_EQ(stream({}, {"x", "y"}).text, "xy");
}

TEST(StopStrings, TheFirstToBeCompleteCounts) {
  EXPECT_EQ(stream({"abc", "b"}, {"abc"}).text, "a");
  EXPECT_EQ(stream({"abc", "b"}, {"a", "b", "c"}).text, "a");
  EXPECT_EQ(stream({"c", "abc"}, {"xabc"}).text, "x") << "of two with the same end the longest";
}

TEST(StopStrings, CharactersAreNotCut) {
  const Streamed text = stream({"stop"}, {"a\xC3", "\xA4\xF0\x9F", "\x98", "\x80z"});
  EXPECT_EQ(text.pieces, (std::vector<std::string>{"a", "ä", "", "\xF0\x9F\x98\x80z", ""}));
  EXPECT_EQ(stream({"ä"}, {"x\xC3", "\xA4y"}).text, "x");
  EXPECT_EQ(stream({"ä"}, {"x\xC3", "\xBCy"}).text, "xüy");
  EXPECT_EQ(stream({"q"}, {"x\xC3"}).text, "x\xC3") << "nothing is lost at the end";
  EXPECT_EQ(stream({"q"}, {"\xFF\x80\x80\x80\x80", "x"}).text, "\xFF\x80\x80\x80\x80x");
}

// Random texts over a small alphabet, divided at random positions.
TEST(StopStrings, TheDivisionOfTheTextDoesNotMatter) {
  std::mt19937 random(5);
  const std::vector<std::string> letters = {"a", "b", "ä", "€", "\xF0\x9F\x98\x80"};
  const auto word = [&](std::size_t length) {
    std::string text;
    for (std::size_t i = 0; i < length; ++i) text += letters[random() % letters.size()];
    return text;
  };
  int found = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::vector<std::string> stop = {word(1 + random() % 4), word(2 + random() % 3)};
    const std::string text = word(30);
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t length = 1 + random() % 5;
      pieces.push_back(text.substr(at, length));
      at += length;
    }
    const Streamed streamed = stream(stop, pieces);
    // The definition: the smallest end, then the smallest beginning.
    std::size_t end = std::string::npos, begin = text.size();
    for (const std::string& s : stop)
      if (const std::size_t at = text.find(s); at != std::string::npos)
        if (at + s.size() < end || (at + s.size() == end && at < begin)) {
          end = at + s.size();
          begin = at;
        }
    EXPECT_EQ(streamed.text, text.substr(0, begin));
    EXPECT_EQ(streamed.found, end != std::string::npos);
    for (const std::string& piece : streamed.pieces)
      EXPECT_EQ(valid_utf8_prefix(piece), piece.size()) << "a character was cut";
    found += streamed.found;
  }
  EXPECT_GT(found, 500);
  EXPECT_LT(found, 2900);
}

TEST(StopStrings, RefuseWhatIsNoText) {
  EXPECT_THAT(user_error_of([] { StopStrings({"a", ""}); }), HasSubstr("empty"));
  EXPECT_THAT(user_error_of([] { StopStrings({"\xFF"}); }), HasSubstr("UTF-8"));
}

}  // namespace
}  // namespace kintsugi
