// The expected pre-tokens are derived by hand from the regular expressions.
#include "data/tokenizers/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/unicode_regex.h"

namespace kintsugi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> pre_tokens_of(PreTokenizer tokenizer, std::string_view text) {
  std::vector<std::string> pre_tokens;
  tokenizer.for_each_pre_token(
      text, [&](std::string_view pre_token) { pre_tokens.emplace_back(pre_token); });
  return pre_tokens;
}

std::vector<std::string> family(const char* name, std::string_view text) {
  return pre_tokens_of(PreTokenizer::of_family(name), text);
}

std::vector<std::string> split_json(const std::string& definition, std::string_view text) {
  return pre_tokens_of(PreTokenizer::of_json(definition), text);
}

TEST(ByteAlphabet, LettersOfTheSpecification) {
  EXPECT_EQ(to_byte_alphabet(std::string_view("\0\t\n \x7F\xAD\xA1\xFF~", 9)),
            "\u0100\u0109\u010A\u0120\u0121\u0143\u00A1\u00FF~");
  for (int byte = 0; byte < 256; ++byte) {
    const std::string one(1, static_cast<char>(byte));
    EXPECT_EQ(from_byte_alphabet(to_byte_alphabet(one)), one);
  }
  for (const char* outside : {" ", "\u0144", "\u20AC", "a b", "\xFF", "\xC4", "\xE2\x82"})
    EXPECT_EQ(from_byte_alphabet(outside), std::nullopt) << outside;
}

TEST(PreTokenizer, Gpt2) {
  EXPECT_THAT(family("gpt2", "I'll  say 1234 it's-ok!?\n\n  x\t"),
              ElementsAre("I", "'ll", " ", " say", " 1234", " it", "'s", "-", "ok", "!?", "\n\n ",
                          " x", "\t"));
  EXPECT_THAT(family("gpt2", "I'LL"), ElementsAre("I", "'", "LL"));
  EXPECT_THAT(family("neox", "a  \n b"), ElementsAre("a", "  \n", " b"));
  EXPECT_THAT(family("gpt2", "x   "), ElementsAre("x", "   "));
  // A combining accent is not a letter; a no-break space is white space but not ' '.
  EXPECT_THAT(family("gpt2", "e\u0301a \u00BD\u00A0b"),
              ElementsAre("e", "\u0301", "a", " \u00BD", "\u00A0", "b"));
  EXPECT_THAT(family("gpt2", ""), ElementsAre());
}

TEST(PreTokenizer, Llama3AndQwen) {
  EXPECT_THAT(family("llama3", "I'LL pay $1234567 now.\n\n  done \n"),
              ElementsAre("I", "'LL", " pay", " $", "123", "456", "7", " now", ".\n\n", " ",
                          " done", " \n"));
  EXPECT_THAT(family("qwen", "a12\tb"), ElementsAre("a", "1", "2", "\tb"));
  EXPECT_THAT(family("llama3", "it'\u017F 's"), ElementsAre("it", "'\u017F", " '", "s"));
  EXPECT_THAT(family("llama3", " \r\n \r\nx"), ElementsAre(" \r\n \r\n", "x"));
}

TEST(PreTokenizer, BloomKeepsTheTextBetweenMatches) {
  EXPECT_THAT(family("bloom", "Hi, you (a|b)  c...\n"),
              ElementsAre("Hi", ",", " you", " (", "a", "|", "b", ") ", " c", "...\n"));
}

TEST(PreTokenizer, O200kSplitsAtUpperCase) {
  EXPECT_THAT(family("o200k", "helloWorld don't 1234/"),
              ElementsAre("hello", "World", " don't", " ", "123", "4", "/"));
}

TEST(PreTokenizer, MongolianVowelSeparatorIsNoSpace) {
  EXPECT_THAT(family("gpt2", "\u180E \u180E"), ElementsAre("\u180E", " \u180E"));
}

TEST(PreTokenizer, BytesThatAreNoUtf8StandAlone) {
  EXPECT_THAT(family("gpt2",
                     "ab\xFF\xFE"
                     "cd \xE2\x82"),
              ElementsAre("ab", "\xFF\xFE", "cd", " ", "\xE2\x82"));
  EXPECT_THAT(family("llama3", "\xED\xA0\x80z"), ElementsAre("\xED\xA0\x80", "z"));
}

TEST(PreTokenizer, SplitBehaviours) {
  const auto split = [](const char* behaviour, const char* invert) {
    return split_json(R"({"type":"Split","pattern":{"String":"-"},"behavior":")" +
                          std::string(behaviour) + R"(","invert":)" + invert + "}",
                      "-a--b-");
  };
  // Adapted from the examples in the Hugging Face documentation.
  EXPECT_THAT(split("Isolated", "false"), ElementsAre("-", "a", "-", "-", "b", "-"));
  EXPECT_THAT(split("Removed", "false"), ElementsAre("a", "b"));
  EXPECT_THAT(split("Removed", "true"), ElementsAre("-", "-", "-", "-"));
  EXPECT_THAT(split("MergedWithPrevious", "false"), ElementsAre("-", "a-", "-", "b-"));
  EXPECT_THAT(split("MergedWithNext", "false"), ElementsAre("-a", "-", "-b", "-"));
  EXPECT_THAT(split("Contiguous", "false"), ElementsAre("-", "a", "--", "b", "-"));
}

TEST(PreTokenizer, ChainsOfSteps) {
  EXPECT_THAT(split_json(R"({"type":"Sequence","pretokenizers":[
      {"type":"Digits","individual_digits":true},
      {"type":"ByteLevel","add_prefix_space":false,"use_regex":true}]})",
                         "ab 12 c"),
              ElementsAre("ab", " ", "1", "2", " c"));
  EXPECT_THAT(split_json(R"({"type":"Digits","individual_digits":false})", "ab12c"),
              ElementsAre("ab", "12", "c"));
  EXPECT_THAT(
      split_json(R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":true})", "ab c"),
      ElementsAre(" ab", " c"));
  EXPECT_THAT(
      split_json(R"({"type":"Metaspace","replacement":"_","prepend_scheme":"first"})", "ab c"),
      ElementsAre("_ab", "_c"));
  EXPECT_THAT(split_json("null", "ab c"), ElementsAre("ab c"));
}

TEST(PreTokenizer, WhatItCannotDoIsSaid) {
  const auto complaint = [](const std::string& definition) -> std::string {
    try {
      PreTokenizer::of_json(definition);
    } catch (const UserError& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_THAT(complaint(R"({"type":"UnicodeScripts"})"), HasSubstr("UnicodeScripts"));
  EXPECT_THAT(complaint(R"({"type":"Split","pattern":{"Regex":"(a"},"behavior":"Isolated"})"),
              HasSubstr("'(a'"));
  EXPECT_THAT(complaint(R"({"type":"Split","pattern":{"Regex":"a{1,3}+"},"behavior":"Isolated"})"),
              HasSubstr("braces"));
  EXPECT_THAT(complaint(R"({"kind":1})"), HasSubstr("type"));
  EXPECT_THROW(PreTokenizer::of_family("gpt5"), UserError);
}

TEST(PreTokenizer, SaysWhatItIs) {
  EXPECT_EQ(
      PreTokenizer::of_family("gpt2").json(),
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})");
  for (const std::string& name : PreTokenizer::family_names()) {
    PreTokenizer again = PreTokenizer::of_json(PreTokenizer::of_family(name).json());
    EXPECT_TRUE(again.byte_level());
    EXPECT_EQ(pre_tokens_of(again, "I'm 12 (x)\n y."), family(name.c_str(), "I'm 12 (x)\n y."));
  }
}

// Compares each scanner with its regular expression; the group (?:…) prevents its recognition.
TEST(PreTokenizer, ScannersAgreeWithTheirExpressions) {
  const std::vector<std::string> units = {"a",
                                          "B",
                                          "s",
                                          "S",
                                          "t",
                                          "LL",
                                          "ll",
                                          "re",
                                          "Ve",
                                          "m",
                                          "D",
                                          "'",
                                          "'",
                                          "'s",
                                          "'S",
                                          "'ſ",
                                          "ſ",
                                          "é",
                                          "ß",
                                          "Ж",
                                          "漢",
                                          "ก",
                                          "ʼ",
                                          "ª",
                                          "0",
                                          "7",
                                          "١",
                                          "½",
                                          "Ⅷ",
                                          "²",
                                          " ",
                                          " ",
                                          "  ",
                                          "\t",
                                          "\n",
                                          "\r",
                                          "\r\n",
                                          "\v",
                                          "\f",
                                          "\u0085",
                                          "\u00A0",
                                          "\u1680",
                                          "\u180E",
                                          "\u2003",
                                          "\u2028",
                                          "\u3000",
                                          "\u200B",
                                          "\uFEFF",
                                          ".",
                                          "-",
                                          "(",
                                          "\"",
                                          "_",
                                          "€",
                                          "…",
                                          "🙂",
                                          "\u200D",
                                          "\u0301",
                                          "\u0903",
                                          "\u20DD",
                                          std::string(1, '\0'),
                                          "\x1C",
                                          "\x7F",
                                          "\u00AD",
                                          "\uE000",
                                          "\U0010FFFF",
                                          "𝟘",
                                          "𐐀"};
  std::mt19937 random(1);
  for (const char* name : {"gpt2", "llama3", "qwen"}) {
    // The expression of GPT-2 is built into ByteLevel, the others are in a Split.
    std::string pattern =
        R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
    const auto json = nlohmann::json::parse(PreTokenizer::of_family(name).json());
    if (json.contains("pretokenizers"))
      pattern = json["pretokenizers"][0]["pattern"]["Regex"].get<std::string>();
    const PreTokenizer expression = PreTokenizer::of_regex("(?:" + pattern + ")");
    const PreTokenizer scanner = PreTokenizer::of_family(name);
    for (int i = 0; i < 6000; ++i) {
      std::string text;
      for (std::size_t k = 1 + random() % 10; k > 0; --k) text += units[random() % units.size()];
      ASSERT_EQ(pre_tokens_of(scanner, text), pre_tokens_of(expression, text))
          << name << ": " << text;
    }
  }
}

TEST(UnicodeRegex, NestedClassesAreUnions) {
  EXPECT_EQ(oniguruma_to_pcre2("[^(\\d|[.,])]+"), "[^(\\d|.,)]+");
  EXPECT_EQ(oniguruma_to_pcre2("[]a]\\["), "[\\]a]\\[");
  EXPECT_EQ(oniguruma_to_pcre2("[[:alpha:]_]"), "[[:alpha:]_]");
  EXPECT_THROW(oniguruma_to_pcre2("[a[^b]]"), UserError);
  EXPECT_THROW(oniguruma_to_pcre2("[a"), UserError);
}

}  // namespace
}  // namespace kintsugi
