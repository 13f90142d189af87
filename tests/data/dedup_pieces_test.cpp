// Paragraphs, lines and substrings that repeat, against searches that compare everything.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <atomic>
#include <random>
#include <set>
#include <sstream>

#include "data/dedup/minhash.h"
#include "data/dedup/pieces.h"
#include "support/dedup_fixture.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> pieces_of(const std::string& text, PieceKind kind) {
  Pieces pieces;
  cut_into_pieces(text, kind, pieces);
  std::vector<std::string> list;
  for (std::size_t i = 0; i < pieces.size(); ++i) list.emplace_back(pieces.of(text, i));
  return list;
}

TEST(PiecesTest, WordsAreBetweenWhiteSpace) {
  const auto words = [](const std::string& text) { return pieces_of(text, PieceKind::Words); };
  EXPECT_THAT(words(" \tThe (big) cat's\r\n\n3.5-fold "),
              ElementsAre("The", "(big)", "cat's", "3.5-fold"));
  EXPECT_THAT(words("\u00e4\u00f6 \u043c\u0438\u0440\u3000x\u00a0y"),
              ElementsAre("\u00e4\u00f6", "\u043c\u0438\u0440", "x", "y"));
  // Scripts without spaces: each letter, with the marks and punctuation behind it.
  EXPECT_THAT(words("\u6771\u4eac\u3002(\u5927)ok\u30ab1"),
              ElementsAre("\u6771", "\u4eac\u3002(", "\u5927)", "ok", "\u30ab", "1"));
  EXPECT_THAT(words("\u0e01\u0e34\u0e19 x"), ElementsAre("\u0e01\u0e34", "\u0e19", "x"));
  EXPECT_THAT(words(" \n"), IsEmpty());
}

TEST(PiecesTest, LinesAndParagraphs) {
  const std::string text = "\n a b\nc \n \t\r\n\nd\r\ne";
  EXPECT_THAT(pieces_of(text, PieceKind::Lines), ElementsAre(" a b", "c", "d", "e"));
  EXPECT_THAT(pieces_of(text, PieceKind::Paragraphs), ElementsAre(" a b\nc", "d\r\ne"));
  EXPECT_THAT(pieces_of("", PieceKind::Lines), IsEmpty());
}

TEST(PiecesTest, WhatIsLeftKeepsItsWhiteSpace) {
  const std::string text = " a  b\nc\td e\n";
  Pieces pieces;
  cut_into_pieces(text, PieceKind::Words, pieces);
  const auto left = [&](std::vector<PieceRange> ranges) {
    return without_pieces(text, pieces, ranges);
  };
  EXPECT_EQ(left({}), text);
  EXPECT_EQ(left({{1, 3}}), " a  d e\n");
  EXPECT_EQ(left({{0, 1}, {2, 4}}), "b\ne\n");
  EXPECT_EQ(left({{1, 4}, {2, 3}, {2, 5}}), " a");
  EXPECT_EQ(left({{0, 3}, {3, 5}}), "");
}

// Sequences that occur twice share the hash of a sample, at the same distance from their begins.
TEST(SequenceSamplesTest, EqualSequencesHaveEqualSamples) {
  std::mt19937_64 random(1);
  for (const std::size_t length : {2u, 3u, 7u, 50u}) {
    std::vector<std::uint64_t> words(4000), shared(length);
    for (auto& word : words) word = random();
    for (auto& word : shared) word = random();
    std::vector<std::size_t> places;
    for (std::size_t at = random() % 90; at + length <= words.size();
         at += length + random() % 90) {
      places.push_back(at);
      std::copy(shared.begin(), shared.end(), words.begin() + static_cast<std::ptrdiff_t>(at));
    }
    SequenceSamples samples(length);
    samples.compute(words);
    ASSERT_EQ(samples.sequences(), words.size() - length + 1);
    std::set<std::pair<std::uint64_t, std::size_t>> found;
    for (const std::size_t at : places)
      found.insert({samples.hash(samples.sample_of(at)), samples.sample_of(at) - at});
    EXPECT_EQ(found.size(), 1u) << length;
  }
}

// Their density is that of minimizers, 2 / (window + 1).
TEST(SequenceSamplesTest, AreFewAndWithinTheirSequences) {
  std::mt19937_64 random(2);
  std::vector<std::uint64_t> words(20000);
  for (auto& word : words) word = random();
  for (const auto& [length, window] : {std::pair{2u, 2u}, {5u, 3u}, {7u, 4u}, {50u, 26u}}) {
    SequenceSamples samples(length);
    samples.compute(words);
    std::set<std::size_t> all;
    for (std::size_t i = 0; i < samples.sequences(); ++i) {
      EXPECT_GE(samples.sample_of(i), i);
      EXPECT_LT(samples.sample_of(i), i + window);
      all.insert(samples.sample_of(i));
    }
    const double expected = 20000 * 2.0 / (window + 1);
    EXPECT_NEAR(static_cast<double>(all.size()), expected, 0.05 * expected) << length;
  }
  SequenceSamples samples(words.size() + 1);
  samples.compute(words);
  EXPECT_EQ(samples.sequences(), 0u);
}

// The formula, of sets of characters.
TEST(MinHashTest, CharactersAreShingles) {
  MinHashShape shape{.ngram = 3, .characters = true, .bands = 2, .rows = 3, .bits = 32};
  const MinHash minhash(shape);
  MinHash::Scratch scratch;
  std::vector<std::uint64_t> found;
  const std::vector<std::string> shingles = {"A\u00e4b", "\u00e4b,", "b, ", ", \u6771"};
  ASSERT_TRUE(minhash.signature("A\u00e4b, \u6771", scratch, found));
  ASSERT_EQ(found.size(), 6u);
  for (std::size_t i = 0; i < found.size(); ++i) {
    std::uint64_t least = UINT64_MAX;
    for (const std::string& one : shingles) {
      const std::uint64_t sum = minhash.a()[i] * shingle_hash(one, shape) + minhash.b()[i];
      least = std::min(least, sum % ((std::uint64_t{1} << 61) - 1) & 0xFFFFFFFF);
    }
    EXPECT_EQ(found[i], least) << i;
  }
  EXPECT_TRUE(minhash.signature("\u00e4b,", scratch, found));
  EXPECT_FALSE(minhash.signature("\u00e4b", scratch, found));
}

class DedupPiecesTest : public DedupFixture {
 protected:
  // Texts of words, which mostly repeat others and themselves.
  std::vector<std::string> random_texts(std::mt19937& random, std::size_t words) {
    constexpr const char* kSpaces[] = {" ", "\n", "  ", "\u3000"};
    const auto vocabulary = std::array{1u, 2u, 3u, 10u, 1000u}[random() % 5];
    std::vector<std::vector<std::string>> texts;
    for (std::size_t i = 0, count = 1 + random() % 12; i < count; ++i) {
      std::vector<std::string> text;
      for (std::size_t j = random() % (3 * words + 20); j > 0; --j)
        text.push_back(
            fmt::format("{}{}", random() % 3 == 0 ? "\u00f6" : "w", random() % vocabulary));
      for (std::size_t copies = random() % 3; copies > 0 && !texts.empty(); --copies) {
        const auto& from = texts[random() % texts.size()];
        if (from.empty()) continue;
        const auto begin = static_cast<std::ptrdiff_t>(random() % from.size());
        const auto end = begin + static_cast<std::ptrdiff_t>(random() % 40);
        const auto at = static_cast<std::ptrdiff_t>(random() % (text.size() + 1));
        const std::vector<std::string> copy(from.begin() + begin,
                                            std::min(from.begin() + end, from.end()));
        text.insert(text.begin() + at, copy.begin(), copy.end());
      }
      texts.push_back(text);
    }
    std::vector<std::string> joined;
    for (const auto& text : texts) {
      joined.emplace_back();
      for (const std::string& word : text)
        joined.back() +=
            (joined.back().empty() ? "" : kSpaces[random() % 8 < 4 ? 0 : random() % 4]) + word;
    }
    return joined;
  }

  static std::vector<std::string> words_of(const std::string& text) {
    return pieces_of(text, PieceKind::Words);
  }

  // Each sequence of `length` words is searched in all that is before it. Words of the first one
  // stay where it overlaps its copy.
  static std::vector<std::vector<std::string>> without_copies(const std::vector<std::string>& texts,
                                                              std::size_t length) {
    std::vector<std::vector<std::string>> words;
    for (const std::string& text : texts) words.push_back(words_of(text));
    const auto equal = [&](std::size_t a, std::size_t i, std::size_t b, std::size_t j) {
      for (std::size_t k = 0; k < length; ++k)
        if (words[a][i + k] != words[b][j + k]) return false;
      return true;
    };
    auto left = words;
    for (std::size_t b = 0; b < words.size(); ++b) {
      std::vector<bool> removed(words[b].size());
      for (std::size_t j = 0; j + length <= words[b].size(); ++j) {
        bool found = false;
        for (std::size_t a = 0; a <= b && !found; ++a)
          for (std::size_t i = 0; i + length <= words[a].size() && (a < b || i < j) && !found;
               ++i) {
            found = equal(a, i, b, j);
            for (std::size_t k = j; found && k < j + length; ++k)
              if (a < b || k >= i + length) removed[k] = true;
          }
      }
      left[b].clear();
      for (std::size_t j = 0; j < words[b].size(); ++j)
        if (!removed[j]) left[b].push_back(words[b][j]);
    }
    return left;
  }

  std::vector<std::vector<std::string>> kept_words() {
    std::vector<std::vector<std::string>> texts;
    for (const std::string& text : kept_texts()) texts.push_back(words_of(text));
    return texts;
  }
};

TEST_F(DedupPiecesTest, SubstringsAreThoseOfASearch) {
  options_.by = DedupBy::Substrings;
  options_.shortest_document = 0;
  std::mt19937 random(3);
  int cut = 0;
  for (int round = 0; round < 30; ++round) {
    options_.inputs.clear();
    options_.output = directory_ / fmt::format("out{}", round);
    options_.substring_words = std::array{2u, 3u, 4u, 5u, 9u, 20u}[random() % 6];
    options_.memory = random() % 2 == 0 ? 1 << 20 : 3000;
    options_.buckets = 1 + random() % 4;
    options_.threads = 1 + random() % 3;
    const auto texts = random_texts(random, options_.substring_words);
    const std::size_t half = texts.size() / 2;
    write_input(fmt::format("{}a.jsonl", round), {texts.begin(), texts.begin() + half});
    write_input(fmt::format("{}b.jsonl", round), {texts.begin() + half, texts.end()});
    const DedupReport report = run();
    auto expected = without_copies(texts, options_.substring_words);
    std::erase_if(expected, [](const auto& words) { return words.empty(); });
    EXPECT_EQ(kept_words(), expected) << fmt::format("{}", texts);
    cut += static_cast<int>(report.cut);
  }
  EXPECT_GT(cut, 60);
}

TEST_F(DedupPiecesTest, ParagraphsAndLinesAreThoseOfASearch) {
  // The same ones after the normalization: the last character is a number.
  constexpr const char* kForms[] = {"The {} cat, {}!", "the  {} CAT {}", " th\u00e9 {} cat - {}"};
  options_.shortest_paragraph = 10;
  options_.shortest_document = 1;
  std::mt19937 random(5);
  for (int round = 0; round < 8; ++round) {
    options_.by = round % 2 == 0 ? DedupBy::Lines : DedupBy::Paragraphs;
    options_.inputs.clear();
    options_.output = directory_ / fmt::format("out{}", round);
    options_.memory = random() % 2 == 0 ? 1 << 20 : 3000;
    options_.buckets = 1 + random() % 4;
    const std::string separator = round % 2 == 0 ? "\n" : "\n \n";
    std::set<int> seen;
    std::vector<std::string> texts, expected;
    for (int i = 0; i < 30; ++i) {
      std::vector<std::string> all, left;
      for (std::size_t j = random() % 6; j > 0; --j) {
        const int number = static_cast<int>(random() % 40);
        const std::string name(static_cast<std::size_t>(number) + 1, 'x');
        const bool short_one = random() % 5 == 0;
        all.push_back(short_one ? "cat " + std::string(random() % 3, 'x')
                                : fmt::format(fmt::runtime(kForms[random() % 3]), name, j));
        if (short_one || seen.insert(number).second) left.push_back(all.back());
      }
      texts.push_back(fmt::format("{}", fmt::join(all, separator)));
      std::string rest = fmt::format("{}", fmt::join(left, separator));
      if (!all.empty() && (left.empty() || left.back() != all.back()))
        rest.resize(rest.find_last_not_of(' ') + 1);
      if (!left.empty()) expected.push_back(rest);
    }
    write_input(fmt::format("{}a.jsonl", round), {texts.begin(), texts.begin() + 13});
    write_input(fmt::format("{}b.jsonl", round), {texts.begin() + 13, texts.end()});
    run();
    EXPECT_EQ(kept_texts(), expected);
  }
}

TEST_F(DedupPiecesTest, ThreadsMemoryAndJobsDoNotMatter) {
  std::mt19937 random(7);
  for (int file = 0; file < 3; ++file)
    write_input(fmt::format("{}.jsonl", file), random_texts(random, 60));
  options_.substring_words = 6;
  options_.buckets = 5;
  options_.shortest_paragraph = 5;
  for (const DedupBy by : {DedupBy::Substrings, DedupBy::Lines}) {
    options_.by = by;
    options_.output = directory_ / std::string(to_string(by));
    options_.memory = 1 << 20;
    run();
    const auto expected = contents();
    for (const std::size_t jobs : {1u, 2u, 7u}) {
      options_.output = directory_ / fmt::format("{}{}", to_string(by), jobs);
      options_.memory = jobs == 1 ? 1 << 20 : 1;
      options_.threads = jobs + 1;
      run_arrays(jobs);
      EXPECT_TRUE(contents() == expected) << jobs;
      EXPECT_EQ(read_text_file(options_.output / "summary.json"),
                read_text_file(directory_ / std::string(to_string(by)) / "summary.json"));
    }
  }
}

// The number of records grows with the text, not with the number of pairs.
TEST_F(DedupPiecesTest, OneWordAgainAndAgainLeavesOneSequence) {
  constexpr std::int64_t kWords = 100'000;
  std::string text, sequence;
  for (std::int64_t i = 0; i < kWords; ++i) (text += i % 3 == 0 ? "a" : "bc") += ' ';
  write_input("a.jsonl", {text, "a bc bc a", text, text});
  options_.by = DedupBy::Substrings;
  options_.memory = 1 << 20;
  const DedupReport report = run();
  EXPECT_EQ(report.copies, 3 * (kWords - 49) - 3);
  ASSERT_EQ(kept_words(), (std::vector{words_of(text.substr(0, 133)), words_of("a bc bc a")}));
  EXPECT_EQ(words_of(text.substr(0, 133)).size(), 50u);
}

TEST_F(DedupPiecesTest, OtherMembersAreCopied) {
  options_.inputs = {
      directory_.write("a.jsonl",
                       "{\"n\": 1.50, \"text\": \"an \\u00e4 b c\", \"a\": [1,  2]}\n"
                       "{ \"n\": 1e3, \"text\": \"one more: an \\u00e4 b c\", \"a\": [1,  2]}\n")};
  options_.by = DedupBy::Substrings;
  options_.substring_words = 4;
  options_.shortest_document = 3;
  options_.packing = "gz";
  run();
  RecordReader reader(options_.output / "kept/00000.jsonl.gz");
  Record record;
  ASSERT_TRUE(reader.next(record));
  EXPECT_EQ(record.bytes, "{\"n\": 1.50, \"text\": \"an \\u00e4 b c\", \"a\": [1,  2]}");
  ASSERT_TRUE(reader.next(record));
  EXPECT_EQ(record.bytes, "{\"n\": 1e3, \"text\": \"one more:\", \"a\": [1,  2]}");
}

TEST_F(DedupPiecesTest, TheSummaryCountsWhatWasFound) {
  write_input("a.jsonl", {"one line\nsecond line", "one line\nthird line", "", "one line",
                          "one line\nsecond line\nx"});
  options_.by = DedupBy::Lines;
  options_.shortest_paragraph = 5;
  options_.shortest_document = 2;
  run();
  EXPECT_EQ(json::parse(read_text_file(options_.output / "summary.json")), json::parse(R"({
    "by": "lines", "documents": 4, "text_bytes": 69, "empty": 1, "invalid": 0, "kept": 2,
    "removed_bytes": 39, "cut": 1, "too_short": 2, "copies": 4,
    "cluster_sizes": [{"from": 2, "clusters": 1, "members": 2},
                      {"from": 4, "clusters": 1, "members": 4}]})"));
}

TEST_F(DedupPiecesTest, TheEstimateIsWhatIsWritten) {
  std::mt19937 random(11);
  write_input("a.jsonl", random_texts(random, 90));
  options_.by = DedupBy::Substrings;
  options_.substring_words = 8;
  const DedupEstimate estimate = estimate_dedup(options_);
  run();
  ASSERT_EQ(estimate.files.size(), 3u);
  EXPECT_EQ(estimate.files[0].bytes, fs::file_size(options_.output / "samples/00000.records"));
  EXPECT_GE(estimate.files[1].bytes, fs::file_size(options_.output / "sequences/00000.records"));
  EXPECT_EQ(estimate.temporary_bytes, 0);
  options_.memory = 100;
  EXPECT_EQ(estimate_dedup(options_).temporary_bytes, estimate.files[1].bytes);
}

TEST_F(DedupPiecesTest, NamesDamagedFiles) {
  write_input("a.jsonl", {"a b c d e f g", "a b c d e f"});
  options_.by = DedupBy::Substrings;
  options_.substring_words = 3;
  options_.buckets = 1;
  run();
  const auto whole = contents();
  const auto damaged = [&](DedupStage stage, DedupStage next, auto&& change) {
    for (const auto& [file, content] : whole) directory_.write("out/" + file, content);
    const std::string name = fmt::format("{}/00000.records", to_string(stage));
    std::string bytes = whole.at(name);
    ASSERT_GT(bytes.size(), 24u);
    change(bytes);
    directory_.write("out/" + name, bytes);
    const std::string folder(next == DedupStage::Remove ? "kept" : to_string(next));
    fs::remove(options_.output / folder / "00000.json");
    EXPECT_THAT(mistake(), AllOf(HasSubstr(name), HasSubstr("is damaged"),
                                 HasSubstr(fmt::format("--stage {} again", to_string(stage)))));
  };
  const auto cut = [](std::string& bytes) { bytes.pop_back(); };
  const auto flip = [](std::string& bytes) { bytes.back() ^= 1; };
  const auto stages = dedup_stages(options_);
  for (std::size_t i = 0; i + 1 < stages.size(); ++i) {
    damaged(stages[i].stage, stages[i + 1].stage, cut);
    damaged(stages[i].stage, stages[i + 1].stage, flip);
    options_.overwrite = true;
    run();
    options_.overwrite = false;
  }
}

TEST_F(DedupPiecesTest, StopsBetweenDocuments) {
  std::mt19937 random(13);
  for (int file = 0; file < 3; ++file)
    write_input(fmt::format("{}.jsonl", file), random_texts(random, 60));
  options_.by = DedupBy::Substrings;
  options_.substring_words = 6;
  options_.buckets = 2;
  run();
  const auto expected = contents();
  options_.output = directory_ / "stopped";
  int stops = 0;
  for (int allowed = 1; stops < 100; ++allowed) {
    std::atomic<int> left = allowed;
    const DedupReport report =
        deduplicate(options_, {[](const std::string&, std::int64_t, const std::string&) {},
                               [](std::int64_t) {}, [&] { return left-- <= 0; }});
    if (!report.stopped) break;
    ++stops;
  }
  EXPECT_GT(stops, 2);
  EXPECT_TRUE(contents() == expected);
}

}  // namespace
}  // namespace kintsugi
