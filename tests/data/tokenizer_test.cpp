// Loading, round trips, damaged files, rank files, and the files written for Hugging Face.
#include "data/tokenizers/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/normalizer.h"
#include "data/tokenizers/pre_tokenizer.h"
#include "data/tokenizers/tokenizer_formats.h"
#include "data/tokenizers/unicode.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<std::int32_t>;
using testing::ElementsAre;
using testing::HasSubstr;

// All bytes, and merges for some English words.
Json small_tokenizer(const std::string& family, const std::string& normalizer = "null") {
  Json vocabulary = Json::object(), merges = Json::array();
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[to_byte_alphabet(std::string(1, static_cast<char>(byte)))] = byte;
  for (const auto& [left, right] :
       std::vector<std::pair<std::string, std::string>>{{"t", "h"},
                                                        {"th", "e"},
                                                        {" ", "the"},
                                                        {" ", " "},
                                                        {"  ", "  "},
                                                        {"a", "n"},
                                                        {"an", "d"},
                                                        {" ", "and"},
                                                        {"l", "l"},
                                                        {"'", "ll"},
                                                        {"\n", "\n"},
                                                        {"\xC3", "\xA9"},
                                                        {"\xF0", "\x9F"},
                                                        {"1", "2"},
                                                        {"12", "3"},
                                                        {"e", "\xCC"}}) {
    const std::string a = to_byte_alphabet(left), b = to_byte_alphabet(right);
    vocabulary[a + b] = vocabulary.size();
    merges.push_back(a + " " + b);
  }
  const auto id = static_cast<int>(vocabulary.size());
  return {{"version", "1.0"},
          {"added_tokens",
           {{{"id", id},
             {"content", "<|endoftext|>"},
             {"single_word", false},
             {"lstrip", false},
             {"rstrip", false},
             {"normalized", false},
             {"special", true}}}},
          {"normalizer", Json::parse(normalizer)},
          {"pre_tokenizer", Json::parse(PreTokenizer::of_family(family).json())},
          {"post_processor", {{"type", "ByteLevel"}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}};
}

class TokenizerTest : public testing::Test {
 protected:
  std::unique_ptr<Tokenizer> load(const Json& json) {
    return load_tokenizer(directory_.write("tokenizer.json", json.dump()));
  }
  std::string mistake(const std::string& name) {
    try {
      load_tokenizer(name);
    } catch (const UserError& error) {
      return error.what();
    }
    return "no complaint";
  }
  std::string mistake_in(const Json& json) {
    return mistake(directory_.write("tokenizer.json", json.dump()));
  }

  TemporaryDirectory directory_;
};

Ids encode(Tokenizer& tokenizer, std::string_view text,
           SpecialTokens special = SpecialTokens::AsText) {
  Ids ids;
  tokenizer.encode(text, ids, special);
  return ids;
}

std::string decode(const Tokenizer& tokenizer, const Ids& ids,
                   SpecialTokens special = SpecialTokens::Honoured) {
  std::string text;
  tokenizer.decode(ids, text, special);
  return text;
}

// Random mix of words, white space, characters of all lengths and invalid bytes.
std::string random_text(std::mt19937& random) {
  static const std::vector<std::string> units = {"the",
                                                 " and",
                                                 "'ll",
                                                 "'LL",
                                                 "  ",
                                                 "\n",
                                                 "\n\n",
                                                 "\t",
                                                 "é",
                                                 "e\u0301",
                                                 "漢",
                                                 "🙂",
                                                 "123",
                                                 "1234",
                                                 "\xC3",
                                                 "\xFF",
                                                 "<|endoftext|>",
                                                 "\u180E",
                                                 "\u00A0",
                                                 ".",
                                                 "...",
                                                 "\r\n",
                                                 std::string(1, '\0')};
  std::string text;
  for (std::size_t i = random() % 40; i > 0; --i)
    if (random() % 3 == 0)
      text += static_cast<char>(random());
    else
      text += units[random() % units.size()];
  return text;
}

TEST_F(TokenizerTest, AnyBytesComeBack) {
  std::mt19937 random(1);
  for (const std::string& family : PreTokenizer::family_names()) {
    const std::unique_ptr<Tokenizer> tokenizer = load(small_tokenizer(family));
    for (int i = 0; i < 300; ++i) {
      const std::string text = random_text(random);
      for (const SpecialTokens special : {SpecialTokens::AsText, SpecialTokens::Honoured}) {
        const Ids ids = encode(*tokenizer, text, special);
        ASSERT_EQ(decode(*tokenizer, ids), text) << family;
        std::int64_t bytes = 0;
        for (const std::int32_t id : ids) bytes += tokenizer->bytes_of(id);
        if (special == SpecialTokens::Honoured) continue;
        ASSERT_EQ(bytes, static_cast<std::int64_t>(text.size()));
      }
    }
  }
}

TEST_F(TokenizerTest, SpecialTokensAreHonouredWhenAskedFor) {
  const std::unique_ptr<Tokenizer> tokenizer = load(small_tokenizer("gpt2"));
  const std::int32_t end = *tokenizer->end_of_document();
  EXPECT_EQ(end, 272);
  EXPECT_EQ(tokenizer->vocab_size(), 273);
  EXPECT_EQ(tokenizer->token_id("<|endoftext|>"), end);
  EXPECT_EQ(tokenizer->token_id("Ġthe"), 258);
  EXPECT_EQ(tokenizer->token_id("nowhere"), std::nullopt);
  EXPECT_EQ(encode(*tokenizer, "a<|endoftext|> the", SpecialTokens::Honoured), (Ids{97, 272, 258}));
  EXPECT_THAT(encode(*tokenizer, "<|endoftext|>"), testing::Not(testing::Contains(end)));
  EXPECT_EQ(decode(*tokenizer, {97, 272, 258}, SpecialTokens::AsText), "a the");
  EXPECT_EQ(decode(*tokenizer, {97, 272, 258}), "a<|endoftext|> the");
  EXPECT_EQ(tokenizer->bytes_of(258), 4);
  EXPECT_EQ(tokenizer->bytes_of(272), 0);
  EXPECT_THROW(decode(*tokenizer, {273}), UserError);
  EXPECT_THROW(decode(*tokenizer, {-1}), UserError);
}

TEST_F(TokenizerTest, AddedTokensTakeTheLongestAndObeyTheirFlags) {
  Json json = small_tokenizer("gpt2");
  const auto add = [&](const char* content, int id, const char* flag) {
    Json token = {{"id", id}, {"content", content}, {"normalized", false}, {"special", false}};
    token[flag] = true;
    json["added_tokens"].push_back(token);
  };
  add("<a>", 300, "none");
  add("<a>>", 301, "none");
  add("word", 302, "single_word");
  add("[L]", 303, "lstrip");
  add("[R]", 304, "rstrip");
  const std::unique_ptr<Tokenizer> tokenizer = load(json);
  EXPECT_EQ(tokenizer->vocab_size(), 305);
  EXPECT_EQ(encode(*tokenizer, "<a>>><a>"), (Ids{301, '>', 300}));
  EXPECT_EQ(encode(*tokenizer, "word-word"), (Ids{302, '-', 302}));
  EXPECT_EQ(encode(*tokenizer, "words"), (Ids{'w', 'o', 'r', 'd', 's'}));
  EXPECT_EQ(encode(*tokenizer, "aword"), (Ids{'a', 'w', 'o', 'r', 'd'}));
  EXPECT_EQ(encode(*tokenizer, "a \u00A0\n[L] b"), (Ids{'a', 303, ' ', 'b'}));
  EXPECT_EQ(encode(*tokenizer, "a [R] \n b[R]"), (Ids{'a', ' ', 304, 'b', 304}));
  EXPECT_EQ(encode(*tokenizer, "[R]  [L]"), (Ids{304, 303}));
}

TEST_F(TokenizerTest, BothNotationsOfMerges) {
  Json json = small_tokenizer("llama3");
  const std::unique_ptr<Tokenizer> strings = load(json);
  for (Json& merge : json["model"]["merges"]) {
    const auto text = merge.get<std::string>();
    const std::size_t space = text.find(' ');
    merge = {text.substr(0, space), text.substr(space + 1)};
  }
  const std::unique_ptr<Tokenizer> pairs = load(json);
  const std::string text = " the and we'll 1234 é";
  EXPECT_EQ(encode(*strings, text), encode(*pairs, text));
  EXPECT_EQ(encode(*pairs, " the"), (Ids{258}));
  json.erase("decoder");  // then the pre-tokenizer determines the decoder
  EXPECT_EQ(decode(*load(json), {258}), " the");
}

TEST_F(TokenizerTest, NormalizesBeforePreTokenizing) {
  const std::unique_ptr<Tokenizer> plain = load(small_tokenizer("qwen"));
  const std::unique_ptr<Tokenizer> nfc = load(small_tokenizer("qwen", R"({"type":"NFC"})"));
  EXPECT_EQ(encode(*nfc, "e\u0301"), encode(*plain, "é"));
  EXPECT_NE(encode(*plain, "e\u0301"), encode(*plain, "é"));
  EXPECT_EQ(encode(*nfc,
                   "\xFF"
                   "e\u0301\xFF"),
            encode(*plain, "\xFFé\xFF"));
}

// Lines of Unicode's NormalizationTest.txt: source; NFC; NFD; NFKC; NFKD.
TEST(Normalizer, FormsOfTheStandard) {
  const std::vector<std::vector<const char*>> lines = {
      {"\u1E0A\u0323", "\u1E0C\u0307", "D\u0323\u0307", "\u1E0C\u0307", "D\u0323\u0307"},
      {"\u1E9B\u0323", "\u1E9B\u0323", "\u017F\u0323\u0307", "\u1E69", "s\u0323\u0307"},
      {"\uFB01", "\uFB01", "\uFB01", "fi", "fi"},
      {"\u212B", "\u00C5", "A\u030A", "\u00C5", "A\u030A"},
      {"\uAC01", "\uAC01", "\u1100\u1161\u11A8", "\uAC01", "\u1100\u1161\u11A8"},
      {"\u0958", "\u0915\u093C", "\u0915\u093C", "\u0915\u093C", "\u0915\u093C"},
      {"a\u0315\u0300\u05AE\u0300\u0062", "\u00E0\u05AE\u0300\u0315b", "a\u05AE\u0300\u0300\u0315b",
       "\u00E0\u05AE\u0300\u0315b", "a\u05AE\u0300\u0300\u0315b"},
  };
  for (const auto& line : lines) {
    EXPECT_EQ(unicode_normalize(line[0], true, true), line[1]);
    EXPECT_EQ(unicode_normalize(line[0], false, true), line[2]);
    EXPECT_EQ(unicode_normalize(line[0], true, false), line[3]);
    EXPECT_EQ(unicode_normalize(line[0], false, false), line[4]);
  }
}

// Each of 64 steps doubles the text: without the limit it would have 2^64 bytes.
TEST(Normalizer, ReplacementsThatGrowWithoutEndAreRefused) {
  Json json = Json::parse(byte_tokenizer_json());
  Json steps = Json::array();
  for (int i = 0; i < 64; ++i)
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  const TemporaryDirectory directory;
  const std::string path = directory.write("tokenizer.json", json.dump());
  const auto tokenizer = load_tokenizer(path);
  std::vector<std::int32_t> ids;
  EXPECT_THAT(user_error_of([&] { tokenizer->encode("banana", ids, SpecialTokens::AsText); }),
              testing::AllOf(HasSubstr(path), HasSubstr("normalizer"), HasSubstr("a text of 6")));
  tokenizer->encode("xyz", ids, SpecialTokens::AsText);
  EXPECT_EQ(ids.size(), 3u) << "nothing to replace";
  // A single step can exceed the limit too.
  json["normalizer"] = {
      {"type", "Replace"}, {"pattern", {{"Regex", "."}}}, {"content", std::string(1 << 20, 'b')}};
  const auto other = load_tokenizer(directory.write("other.json", json.dump()));
  EXPECT_THAT(
      user_error_of([&] { other->encode(std::string(1 << 20, 'a'), ids, SpecialTokens::AsText); }),
      HasSubstr("other.json"));
}

TEST(Normalizer, LongRunsOfMarksTakeNoQuadraticTime) {
  std::string text = "a";
  for (int i = 0; i < 200000; ++i) text += i % 2 == 0 ? "\u0301" : "\u0323";
  const std::string result = unicode_normalize(text, false, true);
  EXPECT_TRUE(result.starts_with("a\u0323\u0323"));
  EXPECT_EQ(result.size(), text.size());
}

TEST_F(TokenizerTest, LongPreTokensAndLinesTakeNoQuadraticTime) {
  const std::unique_ptr<Tokenizer> tokenizer = load(small_tokenizer("llama3"));
  for (const char* unit : {"the", " ", "é", "\xFF", "'", "12"}) {
    std::string text;
    while (text.size() < 2'000'000) text += unit;
    const Ids ids = encode(*tokenizer, text);
    EXPECT_EQ(decode(*tokenizer, ids), text) << unit;
  }
}

TEST_F(TokenizerTest, FilesForHuggingFace) {
  const std::string json = small_tokenizer("gpt2").dump(1);
  const std::string path = directory_.write("tokenizer.json", json);
  std::vector<Tokenizer::File> files = load_tokenizer(path)->files(512);
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].name, "tokenizer.json");
  EXPECT_EQ(files[0].content, json);
  Json config = Json::parse(files[1].content);
  EXPECT_EQ(files[1].name, "tokenizer_config.json");
  EXPECT_EQ(config["model_max_length"], 512);
  EXPECT_EQ(config["eos_token"], "<|endoftext|>");

  // A tokenizer_config.json in the directory is kept unchanged and defines the end of a document.
  const std::string own = R"({"eos_token":{"content":"Ġthe"},"x":1})";
  directory_.write("tokenizer_config.json", own);
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(directory_.path().string());
  EXPECT_EQ(tokenizer->files(512)[1].content, own);
  EXPECT_EQ(tokenizer->end_of_document(), 258);
  directory_.write("tokenizer_config.json", R"({"eos_token":"gone"})");
  EXPECT_THAT(mistake(path), HasSubstr("'gone'"));
}

TEST_F(TokenizerTest, FingerprintsTellWhatDecidesTheIds) {
  Json json = small_tokenizer("gpt2");
  const std::string first = load(json)->fingerprint();
  json["post_processor"] = nullptr;
  EXPECT_EQ(load(json)->fingerprint(), first);
  EXPECT_EQ(load(json)->clone()->fingerprint(), first);
  EXPECT_EQ(load_tokenizer(directory_.write("other.json", json.dump(3)))->fingerprint(), first);
  EXPECT_NE(load(small_tokenizer("llama3"))->fingerprint(), first);
  json["model"]["merges"].erase(3);
  EXPECT_NE(load(json)->fingerprint(), first);
}

TEST_F(TokenizerTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(mistake("/nowhere/tokenizer.json"), HasSubstr("/nowhere/tokenizer.json"));
  EXPECT_THAT(mistake(directory_.path().string()), HasSubstr("no tokenizer.json"));
  Json json = small_tokenizer("gpt2");
  json["model"]["merges"].push_back("q q");
  EXPECT_THAT(mistake_in(json),
              AllOf(HasSubstr("tokenizer.json"), HasSubstr("merge 16"), HasSubstr("'qq'")));
  json = small_tokenizer("gpt2");
  json["model"]["type"] = "Unigram";
  EXPECT_THAT(mistake_in(json), HasSubstr("Unigram"));
  json = small_tokenizer("gpt2");
  json["model"]["vocab"]["x1"] = 4'000'000'000;
  EXPECT_THAT(mistake_in(json), HasSubstr("4000000000"));
  json["model"]["vocab"]["x1"] = 5;
  EXPECT_THAT(mistake_in(json), HasSubstr("same id 5"));
  json = small_tokenizer("gpt2");
  json["normalizer"] = {{"type", "Lowercase"}};
  EXPECT_THAT(mistake_in(json), HasSubstr("Lowercase"));
  json = small_tokenizer("gpt2");
  json["decoder"] = {{"type", "CTC"}};
  EXPECT_THAT(mistake_in(json), HasSubstr("CTC"));
  EXPECT_THAT(mistake(directory_.write("tokenizer.json", "{\"model\": ")),
              HasSubstr("parse error"));
  EXPECT_THAT(mistake(directory_.write("tokenizer.json", std::string(100000, '['))),
              HasSubstr("nested"));
  EXPECT_THAT(mistake(directory_.write("x.model", "no model")), HasSubstr("SentencePiece"));
}

// Files with a few changed bytes load or are rejected; if they load, they work.
TEST_F(TokenizerTest, BrokenFilesDoNoHarm) {
  Json small = small_tokenizer("llama3", R"({"type":"NFC"})");
  const Json vocabulary = small["model"]["vocab"];
  for (const auto& [token, id] : vocabulary.items())
    if (id > 40 && id < 250) small["model"]["vocab"].erase(token);  // so that changes hit the rest
  small["model"]["merges"] = Json::array({"Ċ Ċ"});
  small["model"]["unk_token"] = "!";
  const std::string good = small.dump();
  std::mt19937 random(7);
  int loaded = 0;
  for (int i = 0; i < 400; ++i) {
    std::string bad = good;
    for (std::size_t changes = 1 + random() % 3; changes > 0; --changes) {
      const std::size_t at = random() % bad.size();
      switch (random() % 4) {
        case 0:
          bad[at] = static_cast<char>(random());
          break;
        case 1:
          bad.erase(at, 1 + random() % 8);
          break;
        case 2:
          bad.insert(at, bad.substr(random() % bad.size(), random() % 30));
          break;
        default:
          bad[at] = "0123456789-[]{}\",:\\ntrue"[random() % 23];
      }
      if (bad.empty()) bad = "x";
    }
    try {
      const std::unique_ptr<Tokenizer> tokenizer =
          load_tokenizer(directory_.write("tokenizer.json", bad));
      const Ids ids = encode(*tokenizer, " the '! \n\n\n12 é\xFF", SpecialTokens::Honoured);
      decode(*tokenizer, ids);
      ++loaded;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("tokenizer.json"));
    }
  }
  EXPECT_GT(loaded, 10);
  EXPECT_LT(loaded, 390);
}

std::string base64(std::string_view bytes) {
  static const char* const digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    unsigned bits = 0;
    for (std::size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0);
    for (std::size_t k = 0; k < 4; ++k)
      text += i + k <= bytes.size() ? digits[bits >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

TEST_F(TokenizerTest, RankFiles) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* token : {"th", "he", "the", " the", "aa", "aaa", "\xC3\xA9"})
    tokens.emplace_back(token);
  std::string ranks;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    ranks += base64(tokens[i]) + " " + std::to_string(i) + "\n";
  const std::string path = directory_.write("own.tiktoken", ranks);
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(path + ":llama3");
  EXPECT_EQ(tokenizer->vocab_size(), 263 + 256);
  EXPECT_EQ(tokenizer->token_id("<|begin_of_text|>"), 263);
  EXPECT_EQ(tokenizer->end_of_document(), 264);
  EXPECT_EQ(tokenizer->token_id("<|eot_id|>"), 272);

  // tiktoken's rule: repeatedly merge the pair whose bytes have the lowest rank, the leftmost
  // first.
  std::mt19937 random(3);
  for (int i = 0; i < 400; ++i) {
    std::string word;
    for (std::size_t k = 1 + random() % 12; k > 0; --k) word += "athe"[random() % 4];
    std::vector<std::string> parts;
    for (const char c : word) parts.emplace_back(1, c);
    for (;;) {
      std::size_t best = tokens.size(), at = 0;
      for (std::size_t k = 0; k + 1 < parts.size(); ++k) {
        const auto rank = static_cast<std::size_t>(
            std::find(tokens.begin(), tokens.end(), parts[k] + parts[k + 1]) - tokens.begin());
        if (rank < best) best = rank, at = k;
      }
      if (best == tokens.size()) break;
      parts[at] += parts[at + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
    Ids expected;
    for (const std::string& part : parts)
      expected.push_back(static_cast<std::int32_t>(std::find(tokens.begin(), tokens.end(), part) -
                                                   tokens.begin()));
    ASSERT_EQ(encode(*tokenizer, word), expected) << word;
  }

  // The files written for Hugging Face give the same ids.
  const std::unique_ptr<Tokenizer> again =
      load_tokenizer(directory_.write("again.json", tokenizer->files(64)[0].content));
  for (int i = 0; i < 200; ++i) {
    const std::string text = random_text(random);
    ASSERT_EQ(encode(*again, text), encode(*tokenizer, text));
  }
  EXPECT_EQ(again->fingerprint(), tokenizer->fingerprint());

  EXPECT_THAT(mistake(path), HasSubstr("add the family"));
  EXPECT_THAT(mistake(path + ":gpt9"), HasSubstr("gpt9"));
  EXPECT_THAT(mistake(directory_.write("bad.tiktoken", "QQ== 0\nQg== 1\n!! 2\n") + ":gpt2"),
              HasSubstr("line 3"));
  EXPECT_THAT(mistake(directory_.write("bad.tiktoken", "QQ== 0\nQg== 0\n") + ":gpt2"),
              HasSubstr("line 2"));
}

TEST(ByteTokens, AreBytes) {
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer("bytes");
  EXPECT_EQ(encode(*tokenizer, "a\xFF<|endoftext|>").size(), 15u);
  EXPECT_EQ(encode(*tokenizer, "a\xFF"), (Ids{97, 255}));
  EXPECT_EQ(decode(*tokenizer, {0, 97, 255}), std::string("\0a\xFF", 3));
  EXPECT_EQ(tokenizer->end_of_document(), std::nullopt);
  EXPECT_EQ(tokenizer->token_id("Ġ"), 32);
  EXPECT_EQ(tokenizer->bytes_of(200), 1);
  EXPECT_THROW(decode(*tokenizer, {256}), UserError);
  EXPECT_EQ(tokenizer->files(9)[0].content, byte_tokenizer_json());
  TemporaryDirectory directory;
  EXPECT_EQ(load_tokenizer(directory.write("tokenizer.json", byte_tokenizer_json()))->fingerprint(),
            tokenizer->fingerprint());
}

TEST(SentencePiece, TakesAnyBytesAndKeepsItsModel) {
  const std::string path = test_data_directory() + "/tokenizers/sentencepiece_bpe";
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(path);
  EXPECT_EQ(tokenizer->end_of_document(), 2);
  EXPECT_EQ(tokenizer->token_id("</s>"), 2);
  EXPECT_EQ(tokenizer->token_id("nowhere at all"), std::nullopt);
  EXPECT_THAT(encode(*tokenizer, "a</s>", SpecialTokens::Honoured), testing::Contains(2));
  EXPECT_THAT(encode(*tokenizer, "a</s>"), testing::Not(testing::Contains(2)));
  EXPECT_EQ(decode(*tokenizer, encode(*tokenizer, "In the  beginning 漢字")),
            "In the  beginning 漢字");
  EXPECT_EQ(decode(*tokenizer, {2}), "</s>");
  EXPECT_EQ(decode(*tokenizer, {2}, SpecialTokens::AsText), "");
  EXPECT_THROW(decode(*tokenizer, {700}), UserError);
  std::int64_t bytes = 0;
  for (const std::int32_t id : encode(*tokenizer, "In the beginning 漢"))
    bytes += tokenizer->bytes_of(id);
  EXPECT_EQ(bytes, 21);  // 20 and the prepended space
  std::mt19937 random(5);
  for (int i = 0; i < 500; ++i) decode(*tokenizer, encode(*tokenizer, random_text(random)));
  TemporaryDirectory directory;
  const auto files = tokenizer->files(128);
  EXPECT_EQ(files[0].name, "tokenizer.model");
  EXPECT_EQ(load_tokenizer(directory.write("x.model", files[0].content))->fingerprint(),
            tokenizer->fingerprint());
}

// Token names are written to JSON, which must be UTF-8.
TEST(SentencePiece, PiecesThatAreNoUtf8AreRefused) {
  std::string model =
      load_tokenizer(test_data_directory() + "/tokenizers/sentencepiece_bpe")->files(1)[0].content;
  const std::size_t at = model.find("</s>");
  ASSERT_NE(at, std::string::npos);
  model[at + 1] = '\xFF';
  const TemporaryDirectory directory;
  const std::string path = directory.write("x.model", model);
  EXPECT_THAT(user_error_of([&] { load_tokenizer(path); }),
              testing::AllOf(HasSubstr(path), HasSubstr("piece 2 is not UTF-8")));
}

TEST(SentencePiece, PiecesThatBeginWithZeroAreRefused) {
  std::string model = load_tokenizer(test_data_directory() + "/tokenizers/sentencepiece_unigram")
                          ->files(1)[0]
                          .content;
  const std::size_t at = model.find("▁the");
  ASSERT_NE(at, std::string::npos);
  model[at] = '\0';
  const TemporaryDirectory directory;
  const std::string path = directory.write("x.model", model);
  EXPECT_THAT(user_error_of([&] { load_tokenizer(path); }), HasSubstr(path));
}

TEST(SentencePiece, BrokenModelsDoNoHarm) {
  const std::string path = test_data_directory() + "/tokenizers/sentencepiece_";
  for (const char* kind : {"bpe", "unigram"}) {
    const std::string good = load_tokenizer(path + kind)->files(1)[0].content;
    std::mt19937 random(11);
    for (int i = 0; i < 150; ++i) {
      std::string bad = good;
      for (std::size_t changes = 1 + random() % 3; changes > 0; --changes) {
        const std::size_t at = random() % bad.size();
        if (random() % 2 == 0)
          bad[at] = static_cast<char>(random());
        else
          bad.erase(at, 1 + random() % (i % 10 == 0 ? 2000 : 8));
      }
      TemporaryDirectory directory;
      try {
        const std::unique_ptr<Tokenizer> tokenizer =
            load_tokenizer(directory.write("x.model", bad));
        decode(*tokenizer,
               encode(*tokenizer, "In the beginning 漢字\xFF", SpecialTokens::Honoured));
      } catch (const std::runtime_error&) {  // UserError or Failure
      }
    }
  }
}

}  // namespace
}  // namespace kintsugi
