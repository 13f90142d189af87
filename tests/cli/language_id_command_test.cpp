// kintsugi data train-language-id and language-id.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "support/program_test.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class LanguageIdCommand : public ProgramTest {
 protected:
  // Digits as words of one language, letters as words of the other.
  void SetUp() override {
    std::string digits, letters;
    for (int i = 0; i < 300; ++i) {
      digits += fmt::format("{{\"text\": \"{} {} {}\"}}\n", i * 7, i * i, 900 - i);
      letters += fmt::format("{{\"text\": \"abc{0:c} d{1:c}e {0:c}{1:c}\"}}\n", 'a' + i % 26,
                             'a' + i % 23);
    }
    directory_.write("digits.jsonl", digits);
    directory_.write("letters.jsonl", letters);
    directory_.write("one.txt", "123 456\n789\n");
    directory_.write("two.jsonl", "{\"text\": \"abc dee\"}\n{\"text\": \"\"}\n");
  }
  Outcome train(const std::string& more) {
    return run_kintsugi(
        "data train-language-id --input d=digits.jsonl l='lett*.jsonl' --buckets 2k --threads 1 " +
        more);
  }
  std::string mistake(const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 2) << outcome.error;
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    return outcome.error;
  }
};

TEST_F(LanguageIdCommand, TrainsAModelAndNamesTheLanguageOfDocuments) {
  const Outcome trained = train("--output m.bin");
  ASSERT_EQ(trained.code, 0) << trained.error;
  EXPECT_THAT(trained.out, AllOf(HasSubstr("held out"), HasSubstr("100.00 %")));
  const Outcome table = run_kintsugi("data language-id one.txt two.jsonl --model m.bin");
  ASSERT_EQ(table.code, 0) << table.error;
  EXPECT_THAT(table.out, AllOf(HasSubstr("one.txt"), HasSubstr("documents")));
  const Outcome jsonl = run_kintsugi("data language-id one.txt two.jsonl --model m.bin --jsonl");
  ASSERT_EQ(jsonl.code, 0) << jsonl.error;
  std::istringstream lines(jsonl.out);
  std::vector<std::string> labels;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    labels.push_back(fmt::format("{}:{}:{}", json["file"].get<std::string>(),
                                 json["line"].get<int>(), json["label"].get<std::string>()));
    EXPECT_LE(json["probability"], 1.0);
  }
  ASSERT_EQ(labels.size(), 3);
  EXPECT_THAT(labels[0], testing::EndsWith(":d"));
  EXPECT_EQ(labels[1], "two.jsonl:1:l");
  EXPECT_THAT(labels[2], StartsWith("two.jsonl:2:")) << "an empty line has </s> only";
  const Outcome by_line = run_kintsugi("data language-id one.txt --model m.bin --jsonl --lines");
  EXPECT_EQ(std::count(by_line.out.begin(), by_line.out.end(), '\n'), 2);
}

TEST_F(LanguageIdCommand, ReplacesNothingWithoutBeingAsked) {
  directory_.write("m.bin", "years of work");
  EXPECT_THAT(mistake(train("--output m.bin")), HasSubstr("--overwrite"));
  EXPECT_EQ(content_of("m.bin"), "years of work");
  EXPECT_EQ(train("--output m.bin --overwrite").code, 0);
  EXPECT_NE(content_of("m.bin"), "years of work");
  EXPECT_THAT(mistake(train("--output digits.jsonl --overwrite")),
              HasSubstr("would replace the input"));
}

TEST_F(LanguageIdCommand, ReportsMistakesInOneLine) {
  const auto inputs = [&](const std::string& list) {
    return mistake(run_kintsugi("data train-language-id --output m.bin --input " + list));
  };
  EXPECT_THAT(inputs("digits.jsonl"),
              HasSubstr("--input digits.jsonl is not of the form LABEL=FILES"));
  EXPECT_THAT(inputs("d=digits.jsonl"), HasSubstr("at least two labels"));
  EXPECT_THAT(inputs("'a b=digits.jsonl' c=letters.jsonl"),
              HasSubstr("the label 'a b' has a space"));
  EXPECT_THAT(inputs("a=missing.txt b=letters.jsonl"), HasSubstr("missing.txt"));
  EXPECT_THAT(mistake(train("--output m.bin --min-n 5")),
              HasSubstr("--min-n 5 is above --max-n 4"));
  EXPECT_THAT(mistake(run_kintsugi("data language-id one.txt --model one.txt")),
              HasSubstr("one.txt is no fastText model: it begins with other bytes"));
}

// Debian's manual pages in other languages, where they are installed.
TEST_F(LanguageIdCommand, SeparatesManualPages) {
  std::string inputs, trained_on;
  std::map<std::string, std::string> tested;
  for (const char* const language : {"da", "de", "es", "fi", "fr", "it", "nl", "pl", "sv"}) {
    const fs::path folder = fs::path("/usr/share/man") / language / "man1";
    int pages = 0;
    fs::create_directory(directory_ / language);
    fs::create_directory(directory_ / (language + std::string("_test")));
    if (!fs::exists(folder)) continue;
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.is_regular_file() && entry.path().extension() == ".gz")
        files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    if (files.size() > 40) files.resize(40);
    for (const fs::path& file : files)
      fs::create_symlink(
          file,
          directory_ / (language + std::string(pages++ % 4 == 3 ? "_test" : "")) / file.filename());
    if (pages < 8) continue;
    inputs += fmt::format("{0}='{0}/*' ", language);
    tested[language] = fmt::format("'{}_test/*' ", language);
  }
  if (tested.size() < 4) GTEST_SKIP() << "few manual pages are installed";
  const Outcome trained = run_kintsugi(
      "data train-language-id --output m.bin --buckets 100k --epochs 2 --input " + inputs);
  ASSERT_EQ(trained.code, 0) << trained.error;
  int right = 0, all = 0;
  for (const auto& [language, files] : tested) {
    const Outcome outcome = run_kintsugi("data language-id --jsonl --model m.bin " + files);
    ASSERT_EQ(outcome.code, 0) << outcome.error;
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line); ++all)
      right += nlohmann::json::parse(line)["label"] == language ? 1 : 0;
  }
  EXPECT_GT(right, all * 95 / 100) << "of " << all;
}

}  // namespace
}  // namespace kintsugi
