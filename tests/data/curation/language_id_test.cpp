// Languages: predictions as make_language_cases.py computes them from fastText's definition, files
// that are no models, and training.
#include "data/curation/language_id.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "data/curation/language_training.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

fs::path fixture(const std::string& name) {
  return fs::path(test_data_directory()) / "curation" / name;
}

TEST(LanguageModel, PredictsWhatFastTextPredicts) {
  const auto cases = nlohmann::json::parse(read_text_file(fixture("language_cases.json")));
  ASSERT_GE(cases.size(), 300);
  std::map<std::string, LanguageModel> models;
  for (const auto& one : cases) {
    const std::string name = one["model"], text = one["text"];
    const LanguageModel& model =
        models.try_emplace(name, fixture("language_" + name + ".bin")).first->second;
    const LanguageGuess guess = model.guess(text);
    EXPECT_EQ(guess.label, one["label"].get<std::string>()) << name << ": " << text;
    // The sigmoid of these losses is a table: rounding may lead to the next value.
    const bool table = name == "one_vs_all" || name == "negative_sampling";
    EXPECT_NEAR(guess.probability, one["probability"].get<double>(), table ? 0.01 : 2e-5)
        << name << ": " << text;
  }
  EXPECT_EQ(models.size(), 13);
}

class DamagedModel : public testing::Test {
 protected:
  std::string error_of(const std::string& bytes) {
    const fs::path file = directory_.write("m.bin", bytes);
    const std::string error = user_error_of([&] { LanguageModel model(file); });
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 0) << error;
    EXPECT_THAT(error, HasSubstr(file.string()));
    return error;
  }
  static std::string content(const std::string& name) { return read_text_file(fixture(name)); }
  static std::string with(std::string bytes, std::size_t at, std::int32_t value) {
    return bytes.replace(at, 4, reinterpret_cast<const char*>(&value), 4);
  }

  TemporaryDirectory directory_;
};

TEST_F(DamagedModel, IsRefusedWhereverItIsCut) {
  for (const char* name : {"language_tree.bin", "language_pruned.bin"}) {
    const std::string whole = content(name);
    for (std::size_t size = 0; size < whole.size(); size += size < 400 ? 1 : 37)
      EXPECT_THAT(error_of(whole.substr(0, size)), HasSubstr("fastText model: ")) << size;
    EXPECT_THAT(error_of(whole + "x"), EndsWith("1 bytes follow its end"));
  }
}

TEST_F(DamagedModel, IsRefusedWithTheReason) {
  const std::string good = content("language_softmax.bin");
  EXPECT_THAT(error_of(""), EndsWith("is no fastText model: it begins with other bytes"));
  EXPECT_THAT(error_of("text of many bytes"), EndsWith("it begins with other bytes"));
  EXPECT_THAT(error_of(with(good, 4, 13)), EndsWith("usable fastText model: its version is 13"));
  EXPECT_THAT(error_of(with(good, 8, 0)), EndsWith("the dimension is 0"));
  EXPECT_THAT(error_of(with(good, 8, 6)), EndsWith("its vectors have 6 and 5 values"));
  EXPECT_THAT(error_of(with(good, 32, 5)), EndsWith("the loss is 5"));
  EXPECT_THAT(error_of(with(good, 36, 2)),
              EndsWith("it has vectors of words, and is no classifier"));
  EXPECT_THAT(error_of(with(good, 40, 0)), EndsWith("it has n-grams, but no buckets for them"));
  EXPECT_THAT(error_of(with(good, 40, 51)),
              EndsWith("56 rows are not those of 6 words and 51 buckets"));
  EXPECT_THAT(error_of(with(good, 64, 12)), EndsWith("6 words and 7 labels are not 12 entries"));
  std::string mixed = good;
  mixed[64 + 28 + 13] = 1;  // the type of "</s>"
  EXPECT_THAT(error_of(mixed), EndsWith("words and labels are mixed"));
}

// The order of a file's weights is not checked, but what they say is.
TEST(LanguageModel, RefusesWeightsThatAreNoNumbers) {
  const TemporaryDirectory directory;
  std::string bytes = read_text_file(fixture("language_softmax.bin"));
  const float value = NAN;
  bytes.replace(bytes.size() - 4, 4, reinterpret_cast<const char*>(&value), 4);
  const LanguageModel model(directory.write("m.bin", bytes));
  EXPECT_THAT(user_error_of([&] { model.guess("a b"); }),
              EndsWith("m.bin has weights that are no numbers"));
}

// ---- the filter

TEST(LanguageFilter, KeepsTheLanguagesThatItIsGiven) {
  LanguageFilter filter;
  filter.keep = {"fi", "sv"};
  filter.threshold = 0.6;
  EXPECT_EQ(filter.removed_by({"fi", 0.6F}), "");
  EXPECT_EQ(filter.removed_by({"sv", 1.00001F}), "");
  EXPECT_EQ(filter.removed_by({"sv", 0.59F}), "language.unsure");
  EXPECT_EQ(filter.removed_by({"de", 0.9F}), "language.other");
  EXPECT_EQ(filter.removed_by({"", 0}), "language.none");
  filter.keep = {};
  EXPECT_EQ(filter.removed_by({"de", 0.9F}), "");
  filter.keep = {"fi", "en"};
  filter.model = fixture("language_softmax.bin").string();
  EXPECT_THAT(user_error_of([&] { filter.open(); }),
              EndsWith("language_softmax.bin has no label 'en', only fi, sv, de, nld_Latn, fr, el, "
                       "ja"));
  filter.keep = {"fi"};
  filter.open();
  EXPECT_EQ(filter.guess("ja").label, LanguageModel(filter.model).guess("ja").label);
}

// ---- training

// Languages of random words with letters of different frequencies.
struct RandomLanguages {
  TemporaryDirectory directory;
  std::vector<LanguageFiles> files;

  explicit RandomLanguages(int count, int documents) {
    std::mt19937 random(3);
    for (int language = 0; language < count; ++language) {
      std::string lines;
      for (int i = 0; i < documents; ++i)
        lines += nlohmann::json{{"text", document(language, random)}}.dump() + "\n";
      const std::string label = fmt::format("l{}", language);
      files.push_back({label, {directory.write(label + ".jsonl", lines)}});
    }
  }
  static std::string document(int language, std::mt19937& random) {
    std::string text;
    for (int word = 0; word < 40; ++word) {
      for (unsigned i = 1 + random() % 8; i > 0; --i) {
        // The first letters of each language's own alphabet are the most frequent.
        const unsigned letter = random() % (1 + random() % 26);
        text += static_cast<char>('a' + (letter * 7 + static_cast<unsigned>(language) * 5) % 26);
      }
      text += word % 10 == 9 ? '\n' : ' ';
    }
    return text;
  }
};

TEST(LanguageTraining, DoesNotDependOnTheThreads) {
  const RandomLanguages languages(4, 60);
  const LanguageCorpus corpus = read_language_corpus(languages.files, {});
  LanguageTrainingOptions options;
  options.arguments.bucket = 5000;
  options.epochs = 2;
  options.threads = 1;
  const std::string one = train_language_model(corpus, options);
  options.threads = 5;
  EXPECT_TRUE(train_language_model(corpus, options) == one);
}

TEST(LanguageTraining, SeparatesHeldOutDocuments) {
  const RandomLanguages languages(6, 120);
  const LanguageCorpus corpus = read_language_corpus(languages.files, {.held_out = 0.25});
  LanguageTrainingOptions options;
  options.arguments.bucket = 20000;
  options.arguments.max_n = 3;
  const fs::path file = languages.directory.write("m.bin", train_language_model(corpus, options));
  const LanguageModel model(file);
  EXPECT_EQ(model.labels(), corpus.labels);
  int right = 0, all = 0;
  for (const LanguageCorpus::Document& document : corpus.documents) {
    if (!document.held_out) continue;
    ++all;
    const LanguageGuess guess = model.guess(corpus.text_of(document));
    right += guess.label == corpus.labels[static_cast<std::size_t>(document.label)] ? 1 : 0;
  }
  EXPECT_EQ(all, 6 * 30);
  EXPECT_GE(right, all * 98 / 100);
}

TEST(LanguageTraining, ReadsEachTextOnceAndHoldsSomeOut) {
  const TemporaryDirectory directory;
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += fmt::format("{{\"text\": \"text {}\"}}\n", i % 20);
  lines += "{\"text\": \" \"}\n";
  std::string plain;
  for (int i = 0; i < 5000; ++i) plain += fmt::format("line {}\n", i);
  const std::vector<LanguageFiles> files = {{"a", {directory.write("a.jsonl", lines)}},
                                            {"b", {directory.write("b.txt", plain)}}};
  const LanguageCorpus corpus = read_language_corpus(files, {.held_out = 0.2});
  std::string joined;
  std::map<std::int32_t, int> documents, held_out;
  for (const auto& document : corpus.documents) {
    ++documents[document.label];
    held_out[document.label] += document.held_out ? 1 : 0;
    if (document.label == 1) joined += corpus.text_of(document);
  }
  EXPECT_EQ(documents[0], 20);
  EXPECT_EQ(held_out[0], 4);
  EXPECT_EQ(joined, plain);
  EXPECT_EQ(documents[1], static_cast<int>(plain.size() / 16384 + 1));
  EXPECT_GE(held_out[1], 1) << "of " << documents[1];
  const std::vector<LanguageFiles> empty = {files[0], {"c", {directory.write("c.txt", " \n")}}};
  EXPECT_EQ(user_error_of([&] { read_language_corpus(empty, {}); }), "there is no text of c");
}

TEST(LanguageTraining, PiecesAreCutWhereWordsEnd) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "wörd" + std::string(i % 3 + 1, ' ');
  for (int i = 0; i < 500; ++i) text += "語";
  std::string words;
  for (const std::string_view piece : language_pieces(text)) {
    EXPECT_LE(piece.size(), 400);
    for (const char c : piece)
      if (c != ' ') words += c;
    EXPECT_NE(piece.front() & 0xC0, 0x80);
  }
  std::erase(text, ' ');
  EXPECT_EQ(words, text);
}

}  // namespace
}  // namespace kintsugi
