// Recipes for corpora, and jobs that are stopped, killed and started again.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "data/corpora/record_reader.h"
#include "data/curation/curate_job.h"
#include "data/curation/steps.h"
#include "support/errors.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<Json> documents_in(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().filename().string().starts_with("documents-")) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<Json> documents;
  for (const fs::path& file : files) {
    RecordReader reader(file);
    for (Record record; reader.next(record);) documents.push_back(Json::parse(record.bytes));
  }
  return documents;
}

std::map<std::string, std::string> bytes_of(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename().string()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return files;
}

// The names of the files that are not the same.
std::vector<std::string> differences(const std::map<std::string, std::string>& a,
                                     const std::map<std::string, std::string>& b) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : a)
    if (const auto other = b.find(name); other == b.end() || other->second != bytes)
      names.push_back(name);
  for (const auto& [name, bytes] : b)
    if (!a.contains(name)) names.push_back(name);
  return names;
}

class Curation : public ProgramTest {
 protected:
  CurateOptions options(const std::string& recipe, const std::vector<std::string>& inputs,
                        const std::string& output = "out") {
    CurateOptions options;
    options.recipe = read_recipe(recipe, "recipe.yaml");
    for (const std::string& input : inputs) options.inputs.push_back(directory_ / input);
    options.output = directory_ / output;
    options.threads = 2;
    return options;
  }
  static CurateResult run(const CurateOptions& options) {
    return curate(options, [](const CurateProgress&) { return true; });
  }
  // 600 documents in three files, of which rules remove some.
  void write_corpus() {
    std::mt19937 random(1);
    int number = 0;
    for (const char* name : {"a.jsonl", "b.jsonl", "c.jsonl"}) {
      std::string lines;
      for (int i = 0; i < 200; ++i, ++number) {
        std::string text = fmt::format("Document {}", number);
        for (unsigned words = random() % 300; words > 0; --words)
          text += fmt::format(" word{}", random() % 1000);
        if (number % 5 == 0) text += " mail me at someone@example.com";
        const char* const host = number % 3 == 0 ? "www.bad.fi" : "good.fi";
        lines +=
            Json{
                {"id", number}, {"url", fmt::format("https://{}/{}", host, number)}, {"text", text}}
                .dump() +
            "\n";
      }
      directory_.write(name, lines);
    }
    directory_.write("block.txt", "# domains\nbad.fi\n");
  }
  std::string corpus_recipe() {
    return fmt::format(
        "steps:\n  - urls: {{block: ['{}']}}\n  - gopher_quality: {{min_stop_words: 0}}\n"
        "  - personal_data:\n  - sample: {{keep: 0.7}}\n",
        (directory_ / "block.txt").string());
  }
};

TEST_F(Curation, StepsAreTakenInOrder) {
  write_corpus();
  const CurateResult result = run(options(corpus_recipe(), {"a.jsonl", "b.jsonl", "c.jsonl"}));
  const std::vector<StepReport>& steps = result.report.steps;
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[0].in.documents, 600);
  EXPECT_EQ(steps[0].removed.at("urls.domain").at("").documents, 200);
  EXPECT_EQ(steps[0].out.documents, 400);
  for (std::size_t i = 1; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].in.documents, steps[i - 1].out.documents);
    std::int64_t removed = 0;
    for (const auto& [rule, languages] : steps[i].removed)
      for (const auto& [language, count] : languages) removed += count.documents;
    EXPECT_EQ(steps[i].in.documents - removed, steps[i].out.documents) << i;
  }
  EXPECT_GT(steps[2].notes.at("email"), 0);
  const std::vector<Json> kept = documents_in(directory_ / "out");
  EXPECT_EQ(std::ssize(kept), steps[3].out.documents);
  // 70 % of them within four standard deviations.
  const auto all = static_cast<double>(steps[3].in.documents);
  EXPECT_NEAR(static_cast<double>(kept.size()), 0.7 * all, 4 * std::sqrt(0.21 * all));
  int last = -1;
  for (const Json& one : kept) {
    EXPECT_GT(one["id"], last);
    last = one["id"];
    EXPECT_NE(last % 3, 0);
    EXPECT_EQ(one["text"].get<std::string>().find("@example"), std::string::npos);
    EXPECT_EQ(one["origin"], fmt::format("{}:{}",
                                         (directory_ / (last < 200   ? "a.jsonl"
                                                        : last < 400 ? "b.jsonl"
                                                                     : "c.jsonl"))
                                             .string(),
                                         last % 200 + 1));
  }
}

TEST_F(Curation, WhatIsNotChangedIsCopiedByteForByte) {
  const std::string line =
      R"({ "n": 1.50e3,"text" : "a\u0041\n", "deep":{"a":[1, {"}":"]"}]},"text2":null, "o": 1e400})";
  directory_.write("a.jsonl", line + "\n" + R"({"text":"b","origin":"first:7"})" + "\n");
  CurateOptions plain = options("steps:\n  - sample:\n", {"a.jsonl"});
  plain.compression = CorpusCompression::None;
  run(plain);
  EXPECT_EQ(content_of("out/documents-00000.jsonl"),
            R"({"n": 1.50e3, "text" : "a\u0041\n", "deep":{"a":[1, {"}":"]"}]}, "text2":null, )"
            R"("o": 1e400, "origin": ")" +
                (directory_ / "a.jsonl").string() + ":1\"}\n" +
                R"({"text":"b", "origin":"first:7"})" + "\n");
}

TEST_F(Curation, TextsAreRepaired) {
  const auto repaired = [](std::string text, const Repair& repair = {}) {
    repair.edit(text);
    return text;
  };
  // UTF-8 that was read as Windows-1252: ä is C3 A4, ö C3 B6, – E2 80 93.
  EXPECT_EQ(repaired("T\u00C3\u00A4\u00C3\u00A4ll\u00C3\u00A4 y\u00C3\u00B6 \u00E2\u20AC\u201C"),
            "T\u00E4\u00E4ll\u00E4 y\u00F6 \u2013");
  // The end of a quotation behind a capital letter is not: \u00C4 \u201C are the bytes C4 93.
  const std::string quoted = "Er sagt \u201E\u00C4\u201C, und \u00FCber \u00D6l, na\u00EFf, \u00E9";
  EXPECT_EQ(repaired(quoted), quoted);
  EXPECT_EQ(repaired("a\r\nb\rc\u2028d\u0085e\x07\uFEFF\x7F"
                     "f\u0090\tg"),
            "a\nb\nc\nd\nef\tg");
  EXPECT_EQ(repaired("e\u0301"), "\u00E9");
  EXPECT_EQ(repaired("\uFB01 \u00B2"), "\uFB01 \u00B2") << "NFC, not NFKC";
  const std::string bad = "e\u0301\r\n";
  EXPECT_EQ(repaired(bad, {.normalize = false, .controls = false, .mojibake = false}), bad);
}

TEST_F(Curation, AddressesAreFoundHoweverTheyAreWritten) {
  EXPECT_EQ(host_of("https://user@WWW.Example.FI:8080/a?b#c"), "example.fi");
  EXPECT_EQ(host_of("example.fi."), "example.fi");
  EXPECT_EQ(host_of("http://[2001:db8::1]:80/"), "[2001:db8::1]:80");
  directory_.write("list", "bad.fi\nhttp://www.mixed.fi/one/\n");
  const auto step = make_step(UrlFilter{.key = "u", .block = {(directory_ / "list").string()}});
  const auto rule = [&](const std::string& url) {
    StepContext context;
    const std::string object = Json{{"text", ""}, {"u", url}}.dump();
    CuratedDocument document = CuratedDocument::of_object(object, "text", "f", 1);
    return std::string(step->apply(document, context));
  };
  for (const char* url : {"http://bad.fi", "https://a.b.BAD.fi/x", "bad.fi:80/", "www.bad.fi"})
    EXPECT_EQ(rule(url), "urls.domain") << url;
  for (const char* url : {"http://notbad.fi", "http://bad.fi.org/", "http://fi", ""})
    EXPECT_EQ(rule(url), "") << url;
  EXPECT_EQ(rule("https://mixed.fi/one"), "urls.address");
  EXPECT_EQ(rule("https://mixed.fi/one#top"), "urls.address");
  EXPECT_EQ(rule("https://mixed.fi/two"), "");
}

TEST_F(Curation, WordsOfListsAreCounted) {
  directory_.write("list", "Idiot\nbad old word\n");
  WordFilter settings{.lists = {(directory_ / "list").string()}};
  const auto rule = [&](const std::string& text) {
    StepContext context;
    CuratedDocument document = CuratedDocument::of_text(text, "text");
    return std::string(make_step(settings)->apply(document, context));
  };
  EXPECT_EQ(rule("an IDIOT, he"), "words.listed");
  EXPECT_EQ(rule("a bad (old) word"), "words.listed");
  EXPECT_EQ(rule("idiotic; old bad word"), "");
  settings.most = 2;
  EXPECT_EQ(rule("idiot idiot"), "");
  EXPECT_EQ(rule("idiot idiot idiot"), "words.listed");
  settings.most_fraction = 0.5;  // two words of four
  EXPECT_EQ(rule("idiot idiot and more"), "");
  EXPECT_EQ(rule("idiot idiot and"), "words.fraction");
}

TEST_F(Curation, CopiesFollowTheLanguage) {
  std::string lines;
  for (int i = 0; i < 400; ++i)
    lines +=
        Json{{"text", fmt::format("text {}", i)}, {"language", i % 2 == 0 ? "fi" : "en"}}.dump() +
        "\n";
  directory_.write("a.jsonl", lines);
  run(options("steps:\n  - sample: {keep: 1, languages: {fi: 2.5, en: 0.25}}\n", {"a.jsonl"}));
  std::map<std::string, std::map<std::string, int>> copies;
  for (const Json& one : documents_in(directory_ / "out")) ++copies[one["language"]][one["text"]];
  int twice = 0, thrice = 0;
  for (const auto& [text, count] : copies["fi"]) ++(count == 2 ? twice : thrice);
  EXPECT_EQ(twice + thrice, 200);
  EXPECT_NEAR(thrice, 100, 4 * std::sqrt(50.0));
  EXPECT_NEAR(static_cast<double>(copies["en"].size()), 50, 4 * std::sqrt(37.5));
}

// Small batches, and stops at random places: as often as not in the middle of a file.
TEST_F(Curation, AStoppedJobGoesOnToTheSameBytes) {
  write_corpus();
  CurateOptions whole = options(corpus_recipe(), {"a.jsonl", "b.jsonl", "c.jsonl"}, "whole");
  whole.batch_bytes = 5000;
  whole.shard_bytes = 40000;
  run(whole);
  auto expected = bytes_of(directory_ / "whole");
  EXPECT_GT(expected.size(), 3u) << "several files";
  std::mt19937 random(2);
  for (const int threads : {1, 3}) {
    CurateOptions stopped = whole;
    stopped.output = directory_ / fmt::format("stopped-{}", threads);
    stopped.threads = threads;
    int stops = 0;
    for (;; ++stops) {
      int left = 1 + static_cast<int>(random() % 6);
      if (curate(stopped, [&](const CurateProgress&) { return --left > 0; }).state ==
          CurateResult::State::Finished)
        break;
    }
    EXPECT_GT(stops, 5);
    EXPECT_THAT(differences(bytes_of(stopped.output), expected), IsEmpty());
    EXPECT_EQ(run(stopped).state, CurateResult::State::WasComplete);
  }
}

TEST_F(Curation, AKilledJobGoesOnToTheSameBytes) {
  write_corpus();
  directory_.write("r.yaml", corpus_recipe());
  const std::string command =
      "data curate r.yaml --input '*.jsonl' --save-every 0s --shard-size 100KiB --output ";
  ASSERT_EQ(run_kintsugi(command + "whole").code, 0);
  const auto expected = bytes_of(directory_ / "whole");
  std::mt19937 random(3);
  for (int trial = 0; trial < 8; ++trial) {
    const std::string output = fmt::format("killed-{}", trial);
    for (int attempt = 0; attempt < 5; ++attempt)
      run_in_shell(fmt::format("timeout -s KILL {:.3f} \"$kintsugi\" {}{}",
                               0.02 + 0.001 * (random() % 300), command, output));
    EXPECT_EQ(run_kintsugi(command + output).code, 0);
    EXPECT_THAT(differences(bytes_of(directory_ / output), expected), IsEmpty()) << trial;
  }
}

TEST_F(Curation, MistakesAreOneSentence) {
  write_corpus();
  directory_.write("r.yaml", corpus_recipe());
  const auto mistake = [&](const std::string& arguments) {
    const Outcome outcome = run_kintsugi("data curate " + arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    return outcome.error;
  };
  ASSERT_EQ(run_kintsugi("data curate r.yaml --input a.jsonl --output out").code, 0);
  EXPECT_EQ(run_kintsugi("data curate r.yaml --input a.jsonl --output out").code, 0) << "complete";
  EXPECT_THAT(mistake("r.yaml --input b.jsonl --output out"), HasSubstr("other settings"));
  EXPECT_THAT(mistake("r.yaml --input a.jsonl --output ."), HasSubstr("--output"));
  directory_.write("other/notes.txt", "");
  fs::create_directory(directory_ / "other");
  directory_.write("other/notes.txt", "mine");
  EXPECT_THAT(mistake("r.yaml --input a.jsonl --output other --overwrite"),
              HasSubstr("other files, such as notes.txt"));
  EXPECT_EQ(content_of("other/notes.txt"), "mine");
  directory_.write("broken.jsonl", "{\"text\": \"a\"}\n{\"text\": 5}\n");
  EXPECT_THAT(mistake("r.yaml --input broken.jsonl --output new"),
              HasSubstr("broken.jsonl, line 2"));
  EXPECT_EQ(
      run_kintsugi("data curate r.yaml --input broken.jsonl --output new --skip-invalid").code, 0);
  for (const auto& [recipe, problem] : std::vector<std::pair<std::string, std::string>>{
           {"", "steps"},
           {"steps: []", "steps"},
           {"steps:\n  - {}\n", "steps[0]"},
           {"steps:\n  - repair:\n    sample:\n", "steps[0]"},
           {"steps:\n  - repaire:\n", "repair"},
           {"steps:\n  - sample: {keep: -1}\n", "line 2"},
           {"steps:\n  - urls: {block: [nosuch.txt]}\n", "nosuch.txt"},
           {"steps:\n  - personal_data: {countries: [XX]}\n", "XX"}}) {
    directory_.write("bad.yaml", recipe);
    EXPECT_THAT(mistake("bad.yaml --input a.jsonl --output bad"), HasSubstr(problem)) << recipe;
  }
}

// A task with four questions and its answers: which leaks are found, and how much of each question.
class Decontaminates : public Curation {
 protected:
  static std::string words(const std::string& stem, int from, int to) {
    std::string text;
    for (int i = from; i < to; ++i) text += fmt::format("{}{} ", stem, i);
    return text;
  }
  void SetUp() override {
    std::string questions;
    for (const char* stem : {"red", "blue", "green"})
      questions +=
          Json{{"question", words(stem, 0, 30)}, {"answer", words(stem, 30, 40)}}.dump() + "\n";
    questions += Json{{"question", "too short"}, {"answer", "yes"}}.dump() + "\n";
    directory_.write("questions.jsonl", questions);
    directory_.write("quiz.yaml",
                     "task: quiz\ndataset_path: json\ndataset_kwargs: {data_files: "
                     "{test: questions.jsonl}}\ntest_split: test\noutput_type: generate_until\n"
                     "doc_to_text: 'Question: {{question}}'\ndoc_to_target: '{{answer}}'\n");
  }
  // The rule that each text is removed by, and the share of each question that was found.
  std::map<std::string, double> curate_texts(const std::vector<std::string>& texts,
                                             const std::string& settings,
                                             const std::string& tasks = "quiz.yaml") {
    std::string lines;
    for (const std::string& text : texts) lines += Json{{"text", text}}.dump() + "\n";
    directory_.write("corpus.jsonl", lines);
    directory_.write("r.yaml",
                     "steps:\n  - decontaminate: {tasks: [" + tasks + "]" + settings + "}\n");
    const Outcome outcome = run_kintsugi(
        "data curate r.yaml --input corpus.jsonl --output out --overwrite --compression none");
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    kept_.clear();
    for (const Json& one : documents_in(directory_ / "out")) kept_.push_back(one["text"]);
    std::map<std::string, double> shares;
    const Json report = Json::parse(content_of("out/curation.json"));
    facts_ = report["report"]["steps"][0]["facts"];
    for (const Json& leak : report["report"]["steps"][0]["leaks"])
      shares[leak["sample"]] = leak["share"];
    return shares;
  }
  std::vector<std::string> kept_;
  Json facts_;
};

TEST_F(Decontaminates, FindsWhatIsInOrder) {
  // "Question" and 40 words are 41.
  const std::string clean = words("other", 0, 100);
  const std::string verbatim = clean + "QUESTION:" + words("Red", 0, 40) + clean;
  const std::string half = clean + words("blue", 15, 30) + clean;
  std::string reordered = clean;
  for (int i = 29; i >= 0; --i) reordered += fmt::format("green{} ", i);
  const auto shares = curate_texts({clean, verbatim, half, reordered, "too short yes"}, "");
  EXPECT_THAT(kept_, ElementsAre(clean, reordered, "too short yes"));
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_DOUBLE_EQ(shares.at("quiz: questions.jsonl line 1"), 1);
  EXPECT_DOUBLE_EQ(shares.at("quiz: questions.jsonl line 2"), 15.0 / 41);
  EXPECT_EQ(facts_, (Json{{"quiz: samples", 4}, {"quiz: samples out of reach (too short)", 1}}));
  // Three short sequences, which 13 words do not cover.
  const std::string pieces =
      words("green", 0, 10) + clean + words("green", 10, 20) + clean + words("green", 20, 30);
  EXPECT_TRUE(curate_texts({pieces}, "").empty());
  EXPECT_DOUBLE_EQ(
      curate_texts({pieces}, ", words: 9, fewest_words: 9").at("quiz: questions.jsonl line 3"),
      30.0 / 41);
}

TEST_F(Decontaminates, SharesAndCountsAreChoices) {
  const std::string half = words("blue", 0, 20), most = words("red", 0, 38);
  curate_texts({half, most}, ", share: 0.8");
  EXPECT_THAT(kept_, ElementsAre(half));
  curate_texts({half, most}, ", remove: false");
  EXPECT_THAT(kept_, ElementsAre(half, most));
}

// Which rule finds which kind of leak of a question of 41 words.
TEST_F(Decontaminates, EachRuleFindsItsLeaks) {
  const std::string clean = words("other", 0, 50);
  std::string shuffled, mismatched = "question ";
  for (int i = 0; i < 40; ++i) {
    shuffled += fmt::format("red{} ", i * 7 % 40);
    mismatched += fmt::format("red{} ", i) + (i % 10 == 9 ? "um " : "");
  }
  const std::map<std::string, std::string> leaks = {
      {"verbatim", clean + "Question: " + words("red", 0, 40) + clean},
      {"half", clean + words("red", 20, 40) + clean},
      {"sentences in another order", clean + words("red", 30, 40) + words("red", 20, 30) +
                                         words("red", 10, 20) + words("red", 0, 10) + clean},
      {"a word more in each sentence", clean + mismatched + clean},
      {"a phrase", clean + words("red", 3, 12) + clean},
      {"words in another order", clean + shuffled + clean},
      {"other words", clean}};
  std::vector<std::string> texts;
  for (const auto& [kind, text] : leaks) texts.push_back(text);
  const auto found_by = [&](const std::string& settings) {
    curate_texts(texts, settings);
    std::set<std::string> found;
    for (const auto& [kind, text] : leaks)
      if (std::ranges::count(kept_, text) == 0) found.insert(kind);
    return found;
  };
  using Kinds = std::set<std::string>;
  EXPECT_EQ(found_by(""), (Kinds{"verbatim", "half"}));  // GPT-3
  const Kinds by_share = {"verbatim", "sentences in another order", "a word more in each sentence"};
  EXPECT_EQ(found_by(", words: 8, share: 0.5"), by_share);  // Llama 3, Tulu 3
  // Of the 34 sequences of 8 words, there are 34, 13, 12 and 13.
  EXPECT_EQ(found_by(", words: 8, share: 0.7, share_of: sequences"), Kinds{"verbatim"});  // PaLM
  EXPECT_EQ(found_by(", words: 8, share: 0.38, share_of: sequences"),
            (Kinds{"verbatim", "half", "a word more in each sentence"}));
  EXPECT_EQ(
      found_by(", words: 8, share: 0.35, share_of: sequences"),
      (Kinds{"verbatim", "half", "a word more in each sentence", "sentences in another order"}));
  EXPECT_EQ(found_by(", words: 8"),
            (Kinds{"verbatim", "half", "a phrase", "sentences in another order",
                   "a word more in each sentence"}));
}

TEST_F(Decontaminates, EachDocumentCounts) {
  const std::string leak = words("red", 0, 30), part = words("red", 0, 20);
  curate_texts({part, leak, part}, "");
  const Json leaks = Json::parse(content_of("out/curation.json"))["report"]["steps"][0]["leaks"];
  ASSERT_EQ(leaks.size(), 1u);
  const Json found = leaks[0];
  EXPECT_EQ(found["sample"], "quiz: questions.jsonl line 1");
  EXPECT_EQ(found["documents"], 3);
  EXPECT_DOUBLE_EQ(found["share"], 30.0 / 41);
}

// A phrase is common to the questions of another task, but not to those of the quiz.
TEST_F(Decontaminates, TemplatesAreOfOneTask) {
  const std::string phrase = words("phrase", 0, 20);
  std::string questions;
  for (int i = 0; i < 11; ++i)
    questions +=
        Json{{"question", phrase + fmt::format("number{}", i)}, {"answer", "x"}}.dump() + "\n";
  directory_.write("poll.jsonl", questions);
  std::string poll = content_of("quiz.yaml");
  poll.replace(poll.find("quiz"), 4, "poll");
  poll.replace(poll.find("questions.jsonl"), 15, "poll.jsonl");
  directory_.write("poll.yaml", poll);
  directory_.write("questions.jsonl", Json{{"question", phrase}, {"answer", "y"}}.dump() + "\n");
  for (const char* tasks : {"quiz.yaml, poll.yaml", "poll.yaml, quiz.yaml"}) {
    SCOPED_TRACE(tasks);
    const auto shares = curate_texts({phrase}, "", tasks);
    ASSERT_EQ(shares.size(), 1u);
    EXPECT_DOUBLE_EQ(shares.at("quiz: questions.jsonl line 1"), 20.0 / 22);
  }
}

// What is left of these questions is too short, and this is said.
TEST_F(Decontaminates, QuestionsOfWordsThatAllShareAreCounted) {
  std::string questions;
  for (int i = 0; i < 11; ++i)
    questions += Json{{"question", words("common", 0, 20)}, {"answer", ""}}.dump() + "\n";
  directory_.write("questions.jsonl", questions);
  EXPECT_TRUE(curate_texts({words("common", 0, 20)}, "").empty());
  EXPECT_EQ(facts_["quiz: samples out of reach (only words that are common to the task)"], 11);
}

// What many questions begin with is no leak.
TEST_F(Decontaminates, TemplatesAreLeftOut) {
  const std::string shared = words("common", 0, 20);
  std::string questions;
  for (int i = 0; i < 11; ++i)
    questions +=
        Json{{"question", shared + words(fmt::format("q{}x", i), 0, 20)}, {"answer", "x"}}.dump() +
        "\n";
  directory_.write("questions.jsonl", questions);
  EXPECT_TRUE(curate_texts({shared + words("mine", 0, 30)}, "").empty());
  EXPECT_EQ(curate_texts({shared + words("q3x", 0, 20)}, "").size(), 1u);
  EXPECT_EQ(curate_texts({shared + words("mine", 0, 30)}, ", most_common: 11").size(), 11u);
}

TEST_F(Curation, TwoJobsOnOneOutputAreRefused) {
  write_corpus();
  const CurateOptions one = options(corpus_recipe(), {"a.jsonl", "b.jsonl"});
  int inside = 0;
  curate(one, [&](const CurateProgress&) {
    if (inside++ == 0) {
      EXPECT_THAT(user_error_of([&] { run(one); }), HasSubstr("another process is writing"));
    }
    return true;
  });
  EXPECT_GT(inside, 0);
}

}  // namespace
}  // namespace kintsugi
