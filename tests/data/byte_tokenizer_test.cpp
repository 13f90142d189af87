#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "data/tokenizers/tokenizer_formats.h"

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;

// The code points of a UTF-8 text of one- and two-byte characters.
std::vector<int> code_points(const std::string& text) {
  std::vector<int> points;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80)
      points.push_back(byte);
    else
      points.push_back((byte & 0x1F) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3F));
  }
  return points;
}

TEST(ByteTokenizer, IsAByteLevelBpeWithoutMerges) {
  const Json json = Json::parse(byte_tokenizer_json());
  EXPECT_EQ(json["version"], "1.0");
  EXPECT_EQ(json["model"]["type"], "BPE");
  EXPECT_TRUE(json["model"]["merges"].empty());
  EXPECT_TRUE(json["added_tokens"].empty());
  EXPECT_TRUE(json["normalizer"].is_null()) << "bytes are kept as they are";
  EXPECT_TRUE(json["post_processor"].is_null()) << "nothing is added";
  for (const char* part : {"pre_tokenizer", "decoder"}) {
    EXPECT_EQ(json[part]["type"], "ByteLevel");
    EXPECT_EQ(json[part]["add_prefix_space"], false);
  }
  EXPECT_EQ(json["pre_tokenizer"]["use_regex"], false);
  for (const char* key :
       {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"})
    EXPECT_TRUE(json["model"].at(key).is_null()) << key;
}

TEST(ByteTokenizer, TheVocabularyMapsGpt2sAlphabetToBytes) {
  const Json vocabulary = Json::parse(byte_tokenizer_json())["model"]["vocab"];
  ASSERT_EQ(vocabulary.size(), 256u);
  std::vector<int> letter(256, -1);
  for (const auto& [text, id] : vocabulary.items()) {
    const std::vector<int> points = code_points(text);
    ASSERT_EQ(points.size(), 1u) << text;
    ASSERT_EQ(letter.at(id.get<std::size_t>()), -1) << "two letters for " << id;
    letter[id.get<std::size_t>()] = points[0];
  }
  // Visible Latin-1 characters map to themselves, the other 68 bytes in order to U+0100 … U+0143.
  int next = 0x100, themselves = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
                         (byte >= 0xAE && byte <= 0xFF);
    themselves += visible;
    EXPECT_EQ(letter[static_cast<std::size_t>(byte)], visible ? byte : next) << byte;
    next += !visible;
  }
  EXPECT_EQ(themselves, 188);
  EXPECT_EQ(next, 0x144);
  // Published examples.
  EXPECT_EQ(letter[0x00], 0x100);
  EXPECT_EQ(letter[0x09], 0x109);
  EXPECT_EQ(letter[0x0A], 0x10A);
  EXPECT_EQ(letter[0x20], 0x120);
  EXPECT_EQ(letter[0x7F], 0x121);
  EXPECT_EQ(letter[0xAD], 0x143);
  EXPECT_EQ(vocabulary["\u0120"], 0x20) << "the space, as in every GPT-2 vocabulary";
  EXPECT_EQ(vocabulary["a"], 'a');
}

TEST(ByteTokenizer, TheTokenizerConfigNamesTheLength) {
  const Json json = Json::parse(byte_tokenizer_config_json(512));
  EXPECT_EQ(json["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(json["model_max_length"], 512);
  EXPECT_EQ(json["clean_up_tokenization_spaces"], false) << "decoding must give the text back";
}

TEST(ByteTokenizer, KnowsItself) {
  EXPECT_TRUE(is_byte_tokenizer(byte_tokenizer_json()));
  EXPECT_FALSE(is_byte_tokenizer(""));
  EXPECT_FALSE(is_byte_tokenizer("{}"));
  Json other = Json::parse(byte_tokenizer_json());
  other["model"]["merges"].push_back("a b");
  EXPECT_FALSE(is_byte_tokenizer(other.dump(1) + "\n"));
}

}  // namespace
}  // namespace kintsugi
