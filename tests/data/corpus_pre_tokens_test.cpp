#include "data/tokenizer_training/corpus_pre_tokens.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "core/error.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using Counts = std::map<std::string, std::int64_t>;

Counts counts_of(const CorpusPreTokens& corpus) {
  Counts counts;
  for (const auto& [pre_token, count] : corpus.counts()) {
    EXPECT_FALSE(counts.contains(std::string(pre_token))) << pre_token << " is listed twice";
    counts[std::string(pre_token)] = count;
  }
  return counts;
}

std::string random_word(std::mt19937& random) {
  std::string word;
  for (unsigned length = 1 + random() % 5; length > 0; --length)
    word += static_cast<char>('a' + random() % 12);
  return word;
}

// Words with one space before each are exactly the pre-tokens of GPT-2.
struct Corpus {
  TemporaryDirectory directory;
  std::vector<std::filesystem::path> files;
  Counts expected;
  std::int64_t bytes = 0;

  explicit Corpus(int file_count, int words) {
    std::mt19937 random(5);
    for (int file = 0; file < file_count; ++file) {
      std::string lines;
      for (int document = 0; document < 10; ++document) {
        std::string text;
        for (int i = 0; i < words; ++i) {
          const std::string pre_token = " " + random_word(random);
          ++expected[pre_token];
          text += pre_token;
        }
        bytes += static_cast<std::int64_t>(text.size());
        lines += nlohmann::json{{"text", text}, {"url", "x"}}.dump() + "\n";
      }
      files.emplace_back(directory.write(std::to_string(file) + ".jsonl", lines));
    }
  }
};

TEST(CorpusPreTokens, CountsEveryPreTokenOnceForAnyNumberOfThreads) {
  const Corpus corpus(7, 1000);
  for (const int threads : {1, 2, 3, 16, 0}) {
    const CorpusPreTokens found =
        count_corpus_pre_tokens(corpus.files, {.format = {}, .threads = threads, .progress = {}});
    EXPECT_EQ(counts_of(found), corpus.expected) << threads;
    EXPECT_EQ(found.text_bytes, corpus.bytes);
  }
}

// More distinct pre-tokens than a thread counts locally.
TEST(CorpusPreTokens, FlushesFullLocalCounts) {
  TemporaryDirectory directory;
  std::string text;
  const int distinct = 300000;
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < distinct; ++i) text += fmt::format(" {}", i);
  const std::vector<std::filesystem::path> files = {directory.write("numbers.txt", text)};
  const CorpusPreTokens found =
      count_corpus_pre_tokens(files, {.format = {}, .threads = 2, .progress = {}});
  const std::vector<PreTokenCount> pre_tokens = found.counts();
  ASSERT_EQ(pre_tokens.size(), static_cast<std::size_t>(distinct));
  for (const auto& [pre_token, count] : pre_tokens) ASSERT_EQ(count, 2) << pre_token;
}

TEST(CorpusPreTokens, ASampleTakesFromEveryFileWhateverTheThreads) {
  const Corpus corpus(6, 2000);
  CountingOptions options{.format = {}, .threads = 1, .sample_bytes = 100000, .progress = {}};
  const CorpusPreTokens sample = count_corpus_pre_tokens(corpus.files, options);
  // Each file gives whole documents (about 8 KB here) until its number of bytes is reached.
  EXPECT_GE(sample.text_bytes, 90000);
  EXPECT_LE(sample.text_bytes, 100000 + 6 * 9000);
  for (const int threads : {2, 5}) {
    options.threads = threads;
    EXPECT_EQ(counts_of(count_corpus_pre_tokens(corpus.files, options)), counts_of(sample));
  }
}

TEST(CorpusPreTokens, QwenCountsComposedLetters) {
  TemporaryDirectory directory;
  const std::vector<std::filesystem::path> files = {directory.write("a.txt", "cafe\xCC\x81")};
  const auto counts = [&](const char* family) {
    return counts_of(
        count_corpus_pre_tokens(files, {.pre_tokenizer = family, .format = {}, .progress = {}}));
  };
  EXPECT_EQ(counts("qwen"), (Counts{{"caf\xC3\xA9", 1}}));
  EXPECT_EQ(counts("gpt2"), (Counts{{"cafe", 1}, {"\xCC\x81", 1}}));
}

TEST(CorpusPreTokens, ABadLineIsNamedFromAnyThread) {
  TemporaryDirectory directory;
  std::vector<std::filesystem::path> files;
  for (int i = 0; i < 4; ++i)
    files.emplace_back(directory.write(std::to_string(i) + ".jsonl", "{\"text\": \"fine\"}\n"));
  files.emplace_back(directory.write("bad.jsonl", "{\"text\": \"fine\"}\n{\"text\": 7}\n"));
  try {
    count_corpus_pre_tokens(files, {.format = {}, .threads = 3, .progress = {}});
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("bad.jsonl, line 2"));
  }
}

TEST(PreTokenCounts, AddsUp) {
  PreTokenCounts counts;
  Counts expected;
  std::mt19937 random(11);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 20000; ++i) {
      std::string pre_token = random_word(random);
      if (i % 7 == 0) pre_token += std::string(1, '\0');
      const std::int64_t count = random() % 3 + 1;
      counts.add(pre_token, count);
      expected[pre_token] += count;
    }
    Counts found;
    counts.for_each([&](std::string_view pre_token, std::int64_t count, std::uint64_t hash) {
      EXPECT_EQ(hash, PreTokenCounts::hash(pre_token));
      found[std::string(pre_token)] += count;
    });
    EXPECT_EQ(found, expected);
    EXPECT_EQ(counts.size(), expected.size());
    counts.clear();
    expected.clear();
    EXPECT_EQ(counts.size(), 0u);
  }
}

}  // namespace
}  // namespace kintsugi
