// Compares the merge functions with the definition: examine all pairs, merge the leftmost one of
// the lowest rank, repeat.
#include "data/tokenizers/bpe.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "data/tokenizers/pre_tokenizer.h"
#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

using Ids = std::vector<std::int32_t>;

// A vocabulary of the given letters and random merges of existing tokens.
struct RandomBpe {
  std::vector<std::string> tokens;
  std::vector<BpeModel::MergeRule> merges;
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> rank;

  RandomBpe(std::vector<std::string> letters, std::size_t merge_count, std::mt19937& random)
      : tokens(std::move(letters)) {
    std::set<std::string> known(tokens.begin(), tokens.end());
    for (std::size_t tries = 0; merges.size() < merge_count && tries < 20 * merge_count; ++tries) {
      const auto pick = [&] { return static_cast<std::int32_t>(random() % tokens.size()); };
      const std::int32_t left = pick(), right = pick();
      const std::string merged =
          tokens[static_cast<std::size_t>(left)] + tokens[static_cast<std::size_t>(right)];
      if (merged.size() > 24 || rank.contains({left, right})) continue;
      // Several merges may give the same token.
      const auto found = std::find(tokens.begin(), tokens.end(), merged);
      const auto id = static_cast<std::int32_t>(found - tokens.begin());
      if (found == tokens.end()) tokens.push_back(merged);
      rank[{left, right}] = merges.size();
      merges.push_back({left, right, id});
    }
    if (random() % 2 == 0)  // also orders that training never gives
      std::shuffle(merges.begin(), merges.end(), random);
    for (std::size_t i = 0; i < merges.size(); ++i) rank[{merges[i].left, merges[i].right}] = i;
  }

  Ids merge(Ids ids) const {
    for (;;) {
      std::size_t best = merges.size(), at = 0;
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto found = rank.find({ids[i], ids[i + 1]});
        if (found != rank.end() && found->second < best) best = found->second, at = i;
      }
      if (best == merges.size()) return ids;
      ids[at] = merges[best].merged;
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
  }

  BpeModel::Vocabulary vocabulary() const {
    BpeModel::Vocabulary all;
    for (std::size_t i = 0; i < tokens.size(); ++i)
      all.emplace(tokens[i], static_cast<std::int32_t>(i));
    return all;
  }
};

std::vector<std::string> all_bytes() {
  std::vector<std::string> letters;
  for (int byte = 0; byte < 256; ++byte) letters.emplace_back(1, static_cast<char>(byte));
  return letters;
}

TEST(Bpe, MergesByRankAndFromTheLeft) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    const RandomBpe bpe({"a", "b", "c"}, 1 + random() % 40, random);
    const BpeModel model(bpe.vocabulary(), bpe.merges, {});
    for (int pre_token = 0; pre_token < 30; ++pre_token) {
      Ids symbols(random() % 64);
      for (std::int32_t& symbol : symbols) symbol = static_cast<std::int32_t>(random() % 3);
      const Ids expected = bpe.merge(symbols);
      Ids few = symbols, many = symbols, very_many = symbols;
      merge_short(model.merges(), few);
      merge_with_heap(model.merges(), many);
      merge_by_rank(model.merges(), very_many);
      ASSERT_EQ(few, expected);
      ASSERT_EQ(many, expected);
      ASSERT_EQ(very_many, expected);
    }
  }
}

TEST(Bpe, EncodesPreTokensOfAnyLengthThroughTheCache) {
  std::mt19937 random(2);
  std::vector<std::string> letters = all_bytes();
  const RandomBpe bpe(letters, 3000, random);
  BpeEncoder encoder(std::make_shared<BpeModel>(bpe.vocabulary(), bpe.merges, BpeModel::Options{}));
  std::vector<std::string> pre_tokens;
  for (int i = 0; i < 3000; ++i) {
    std::string pre_token;
    const std::size_t length = 1 + random() % 70;
    while (pre_token.size() < length) pre_token += bpe.tokens[random() % bpe.tokens.size()];
    if (i % 2 == 0) pre_token.resize(length);
    pre_tokens.push_back(pre_token);
  }
  for (int round = 0; round < 2; ++round)
    for (const std::string& pre_token : pre_tokens) {
      Ids symbols, ids;
      for (const char c : pre_token) symbols.push_back(static_cast<unsigned char>(c));
      encoder.encode(pre_token, ids);
      ASSERT_EQ(ids, bpe.merge(symbols));
    }
}

// The cache must not confuse pre-tokens of the same length, start and end.
TEST(Bpe, TheCacheDistinguishesPreTokens) {
  const RandomBpe bytes = [] {
    std::mt19937 random(3);
    return RandomBpe(all_bytes(), 0, random);
  }();
  BpeEncoder encoder(
      std::make_shared<BpeModel>(bytes.vocabulary(), bytes.merges, BpeModel::Options{}));
  for (int round = 0; round < 2; ++round)
    for (std::size_t length = 1; length <= 7; ++length)
      for (std::size_t position = 0; position < length; ++position)
        for (const char c : {'\0', 'a', 'b', '\xFF'}) {
          std::string pre_token(length, 'a');
          pre_token[position] = c;
          Ids ids, expected;
          for (const char byte : pre_token) expected.push_back(static_cast<unsigned char>(byte));
          encoder.encode(pre_token, ids);
          ASSERT_EQ(ids, expected);
        }
}

TEST(Bpe, SplitsTextsWithoutPreTokenizerWhereNoMergeCrosses) {
  std::mt19937 random(4);
  for (int round = 0; round < 30; ++round) {
    std::vector<std::string> letters = {"a", "b", "é", "▁", "漢"};
    for (int byte = 0; byte < 256; ++byte) letters.push_back(fmt::format("<0x{:02X}>", byte));
    RandomBpe bpe({"a", "b", "é", "▁", "漢"}, 12, random);
    // Append the byte tokens, so that the ids of the merges stay the same.
    const auto first_byte = static_cast<std::int32_t>(bpe.tokens.size());
    bpe.tokens.insert(bpe.tokens.end(), letters.begin() + 5, letters.end());
    const auto model =
        std::make_shared<BpeModel>(bpe.vocabulary(), bpe.merges,
                                   BpeModel::Options{.byte_level = false, .byte_fallback = true});
    ASSERT_TRUE(model->splittable());
    BpeEncoder encoder(model);
    for (int pre_token = 0; pre_token < 40; ++pre_token) {
      std::string text;
      Ids symbols;
      for (std::size_t i = random() % 100; i > 0; --i) {
        const std::size_t letter = random() % 6;
        text += letter < 5 ? letters[letter] : "ö";
        if (letter < 5)
          symbols.push_back(static_cast<std::int32_t>(letter));
        else
          for (const int byte : {0xC3, 0xB6}) symbols.push_back(first_byte + byte);
      }
      Ids ids;
      encoder.encode(text, ids);
      ASSERT_EQ(ids, bpe.merge(symbols)) << text;
    }
  }
}

TEST(Bpe, WhatHasNoTokenIsUnknownFusedOrDropped) {
  const auto encode = [](BpeModel::Options options, std::string_view text) {
    options.byte_level = false;
    BpeEncoder encoder(std::make_shared<BpeModel>(
        BpeModel::Vocabulary{{"<unk>", 0}, {"a", 1}, {"<0xC3>", 2}, {"<0xA9>", 3}},
        std::vector<BpeModel::MergeRule>{}, options));
    Ids ids;
    encoder.encode(text, ids);
    return ids;
  };
  EXPECT_EQ(encode({.unknown = 0}, "axxa"), (Ids{1, 0, 0, 1}));
  EXPECT_EQ(encode({.fuse_unknown = true, .unknown = 0}, "axxa"), (Ids{1, 0, 1}));
  EXPECT_EQ(encode({}, "axxa"), (Ids{1, 1}));
  EXPECT_EQ(encode({.byte_fallback = true, .unknown = 0}, "aéö"), (Ids{1, 2, 3, 0}));
}

TEST(Bpe, APreTokenInTheVocabularyMayOverrideMerges) {
  const auto encode = [](bool ignore_merges) {
    BpeEncoder encoder(std::make_shared<BpeModel>(
        BpeModel::Vocabulary{{"a", 0}, {"b", 1}, {"c", 2}, {"bc", 3}, {"abc", 4}},
        std::vector<BpeModel::MergeRule>{{1, 2, 3}},
        BpeModel::Options{.ignore_merges = ignore_merges}));
    Ids ids;
    encoder.encode("abc", ids);
    return ids;
  };
  EXPECT_EQ(encode(false), (Ids{0, 3}));
  EXPECT_EQ(encode(true), (Ids{4}));
}

}  // namespace
}  // namespace kintsugi
