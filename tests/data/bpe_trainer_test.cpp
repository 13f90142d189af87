#include "data/tokenizer_training/bpe_trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "core/error.h"

namespace kintsugi {
namespace {

using Words = std::map<std::string, std::int64_t>;
using Merges = std::vector<std::pair<std::string, std::string>>;

std::vector<PreTokenCount> counted(const Words& words) {
  std::vector<PreTokenCount> pre_tokens;
  for (const auto& [word, count] : words) pre_tokens.push_back({word, count});
  return pre_tokens;
}

Merges spelled(const TrainedBpe& bpe) {
  Merges merges;
  for (const auto& [left, right] : bpe.merges)
    merges.emplace_back(bpe.tokens.at(static_cast<std::size_t>(left)),
                        bpe.tokens.at(static_cast<std::size_t>(right)));
  return merges;
}

// The definition of Hugging Face's byte alphabet: visible Latin-1 characters map to themselves, the
// other bytes to the code points from 256.
int letter(unsigned char byte) {
  const auto visible = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xFF && b != 0xAD);
  };
  if (visible(byte)) return byte;
  int code = 256;
  for (int b = 0; b < byte; ++b) code += !visible(b);
  return code;
}

// The rule implemented literally: recount everything at each step, take the best pair, replace it
// from left to right.
struct Oracle {
  std::vector<std::string> tokens;
  Merges merges;
  std::int64_t corpus_tokens = 0;
  std::map<std::string, std::vector<int>> segmented;  // words as ids

  Oracle(const Words& words, std::int64_t vocab_size, std::int64_t min_frequency, int specials) {
    std::vector<int> id_of(256);
    std::multimap<int, int> alphabet;
    for (int byte = 0; byte < 256; ++byte)
      alphabet.emplace(letter(static_cast<unsigned char>(byte)), byte);
    tokens.assign(static_cast<std::size_t>(specials), "");
    for (const auto& [code, byte] : alphabet) {
      id_of[static_cast<std::size_t>(byte)] = static_cast<int>(tokens.size());
      tokens.emplace_back(1, static_cast<char>(byte));
    }
    for (const auto& [word, count] : words)
      for (const char c : word) segmented[word].push_back(id_of[static_cast<unsigned char>(c)]);
    while (static_cast<std::int64_t>(tokens.size()) < vocab_size && step(words, min_frequency)) {
    }
    for (const auto& [word, ids] : segmented)
      corpus_tokens += words.at(word) * static_cast<std::int64_t>(ids.size());
  }

  bool step(const Words& words, std::int64_t min_frequency) {
    std::map<std::pair<int, int>, std::int64_t> counts;
    for (const auto& [word, ids] : segmented)
      for (std::size_t i = 0; i + 1 < ids.size(); ++i)
        counts[{ids[i], ids[i + 1]}] += words.at(word);
    std::pair<int, int> best;
    std::int64_t most = 0;
    for (const auto& [pair, count] : counts)  // in ascending order, so the first one wins a tie
      if (count > most) most = count, best = pair;
    if (most < std::max<std::int64_t>(min_frequency, 1)) return false;
    const int token = static_cast<int>(tokens.size());
    merges.emplace_back(tokens[static_cast<std::size_t>(best.first)],
                        tokens[static_cast<std::size_t>(best.second)]);
    tokens.push_back(merges.back().first + merges.back().second);
    for (auto& [word, ids] : segmented) {
      std::vector<int> joined;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const bool match = i + 1 < ids.size() && ids[i] == best.first && ids[i + 1] == best.second;
        joined.push_back(match ? token : ids[i]);
        i += match;
      }
      ids = joined;
    }
    return true;
  }
};

Words random_words(std::mt19937& random, int letters, int count, int longest) {
  Words words;
  for (int i = 0; i < count; ++i) {
    std::string word;
    const auto length = 1 + random() % static_cast<unsigned>(longest);
    for (unsigned k = 0; k < length; ++k)
      word += static_cast<char>("ab \n\xC3z\xFF\x80"[random() % static_cast<unsigned>(letters)]);
    words[word] += 1 + static_cast<std::int64_t>(random() % 4);
  }
  return words;
}

TEST(BpeTrainer, GivesWhatRecountingEveryStepGives) {
  std::mt19937 random(20261115);
  int merges = 0;
  for (int round = 0; round < 600; ++round) {
    // Few letters and small counts: repeated letters and ties at almost every step.
    const int letters = 1 + round % 8;
    const Words words =
        random_words(random, letters, 1 + round % 23, round % 3 == 0 ? 40 : 1 + round % 12);
    const int specials = round % 3;
    BpeTrainerOptions options{.vocab_size = 256 + specials + round % 60,
                              .min_frequency = round % 4,
                              .special_tokens = {},
                              .progress = {}};
    for (int i = 0; i < specials; ++i) options.special_tokens.push_back("<" + std::to_string(i));
    const TrainedBpe bpe = train_bpe(counted(words), options);
    const Oracle oracle(words, options.vocab_size, options.min_frequency, specials);
    ASSERT_EQ(spelled(bpe), oracle.merges) << "round " << round;
    ASSERT_EQ(bpe.corpus_tokens, oracle.corpus_tokens) << "round " << round;
    ASSERT_TRUE(std::equal(bpe.tokens.begin() + specials, bpe.tokens.end(),
                           oracle.tokens.begin() + specials, oracle.tokens.end()));
    merges += static_cast<int>(bpe.merges.size());
  }
  EXPECT_GT(merges, 5000);  // the cases are not trivial
}

TEST(BpeTrainer, TheOrderOfThePreTokensDoesNotMatter) {
  std::mt19937 random(7);
  const Words words = random_words(random, 6, 400, 15);
  std::vector<PreTokenCount> pre_tokens = counted(words);
  const BpeTrainerOptions options{.vocab_size = 700, .special_tokens = {}, .progress = {}};
  const TrainedBpe bpe = train_bpe(pre_tokens, options);
  for (int i = 0; i < 5; ++i) {
    std::shuffle(pre_tokens.begin(), pre_tokens.end(), random);
    EXPECT_EQ(train_bpe(pre_tokens, options).merges, bpe.merges);
  }
}

// The example of the paper (Sennrich et al. 2016): low, lower, newest, widest.
TEST(BpeTrainer, TheClassicExample) {
  const Words words = {{"low", 5}, {"lower", 2}, {"newest", 6}, {"widest", 3}};
  const TrainedBpe bpe =
      train_bpe(counted(words), {.vocab_size = 260, .special_tokens = {}, .progress = {}});
  const Merges expected = {{"e", "s"}, {"es", "t"}, {"l", "o"}, {"lo", "w"}};
  EXPECT_EQ(spelled(bpe), expected);
}

TEST(BpeTrainer, SpecialTokensComeFirstThenTheAlphabetByCodePoint) {
  const Words words = {{"ab", 9}};
  const TrainedBpe bpe =
      train_bpe(counted(words),
                {.vocab_size = 300, .special_tokens = {"<|endoftext|>", "<pad>"}, .progress = {}});
  EXPECT_EQ(bpe.tokens.at(0), "<|endoftext|>");
  EXPECT_EQ(bpe.tokens.at(1), "<pad>");
  EXPECT_EQ(bpe.tokens.at(2), "!");                         // U+0021
  EXPECT_EQ(bpe.tokens.at(2 + 93), "~");                    // U+007E
  EXPECT_EQ(bpe.tokens.at(2 + 94), "\xA1");                 // U+00A1
  EXPECT_EQ(bpe.tokens.at(2 + 187), "\xFF");                // U+00FF
  EXPECT_EQ(bpe.tokens.at(2 + 188), std::string(1, '\0'));  // U+0100
  EXPECT_EQ(bpe.tokens.at(2 + 220), " ");                   // U+0120
  EXPECT_EQ(bpe.tokens.at(2 + 255), "\xAD");                // U+0143
  EXPECT_EQ(bpe.tokens.at(258), "ab");
  EXPECT_EQ(bpe.vocab_size(), 259);  // nothing left to merge
  EXPECT_EQ(bpe.special_tokens, 2);
}

TEST(BpeTrainer, TextNeverBecomesASpecialToken) {
  const Words words = {{"<s>", 50}, {"s>", 20}, {"<s>x", 3}};
  const TrainedBpe bpe =
      train_bpe(counted(words), {.vocab_size = 400, .special_tokens = {"<s>"}, .progress = {}});
  EXPECT_EQ(std::count(bpe.tokens.begin(), bpe.tokens.end(), "<s>"), 1);
  EXPECT_EQ(std::count(bpe.tokens.begin(), bpe.tokens.end(), "s>"), 1);
  // "<" and "s>" are not merged, so "<s>" has two tokens; "<s>x" is not special and becomes one
  // token.
  EXPECT_EQ(bpe.corpus_tokens, 50 * 2 + 20 + 3);
}

// Each merge in a pre-token of a million letters costs its occurrences, not the whole length.
TEST(BpeTrainer, ALongPreTokenIsFast) {
  std::mt19937 random(3);
  std::string pre_token(1000000, ' ');
  for (char& c : pre_token) c = static_cast<char>('a' + random() % 16);
  const std::vector<PreTokenCount> pre_tokens = {{pre_token, 1}};
  const TrainedBpe bpe =
      train_bpe(pre_tokens, {.vocab_size = 5000, .special_tokens = {}, .progress = {}});
  EXPECT_EQ(bpe.vocab_size(), 5000);
  EXPECT_EQ(bpe.corpus_bytes, 1000000);
  EXPECT_LT(bpe.corpus_tokens,
            450000);  // 4 bits per letter in tokens of 12.3 bits: 326,000 at best
}

TEST(BpeTrainer, CountsBeyond32Bits) {
  const std::vector<PreTokenCount> pre_tokens = {{"ab", 6000000000}, {"cd", 6000000001}};
  const TrainedBpe bpe =
      train_bpe(pre_tokens, {.vocab_size = 257, .special_tokens = {}, .progress = {}});
  EXPECT_EQ(spelled(bpe), (Merges{{"c", "d"}}));
  EXPECT_EQ(bpe.corpus_bytes, 24000000002);
}

TEST(BpeTrainer, NothingToMergeGivesTheBytes) {
  EXPECT_EQ(train_bpe({}, {.vocab_size = 500, .special_tokens = {}, .progress = {}}).vocab_size(),
            256);
  const Words once = {{"abc", 1}};
  EXPECT_EQ(train_bpe(counted(once), {.vocab_size = 500, .special_tokens = {}, .progress = {}})
                .vocab_size(),
            256);
}

std::string refusal(const BpeTrainerOptions& options) {
  try {
    check_bpe_options(options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(BpeTrainer, ImpossibleOptionsAreNamed) {
  EXPECT_EQ(refusal({.vocab_size = 256, .special_tokens = {"<s>"}, .progress = {}}),
            "a vocabulary of 256 is too small: the 256 bytes and 1 special token need 257");
  EXPECT_EQ(refusal({.vocab_size = 257, .special_tokens = {"<s>"}, .progress = {}}), "");
  EXPECT_THAT(refusal({.special_tokens = {"<s>", "<s>"}, .progress = {}}),
              testing::HasSubstr("twice"));
  EXPECT_THAT(refusal({.special_tokens = {"Ġ"}, .progress = {}}), testing::HasSubstr("letter"));
  EXPECT_THAT(refusal({.special_tokens = {""}, .progress = {}}), testing::HasSubstr("empty"));
}

}  // namespace
}  // namespace kintsugi
