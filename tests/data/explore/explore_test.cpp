// What `data explore` shows of what `data curate` and `data dedup` wrote.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "core/file.h"
#include "data/curation/curate_job.h"
#include "data/dedup/dedup_job.h"
#include "data/explore/document_sample.h"
#include "data/explore/explored_directory.h"
#include "support/errors.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

class Explore : public testing::Test {
 protected:
  std::string lines_of(const std::vector<Json>& documents) {
    std::string lines;
    for (const Json& one : documents) lines += one.dump() + "\n";
    return lines;
  }
  CurateOptions curation(const std::string& recipe, const std::vector<std::string>& inputs,
                         const std::string& output) {
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
  // Three documents: one is removed, one is masked.
  void curate_three() {
    directory_.write("words.txt", "idiot\n");
    directory_.write(
        "a.jsonl", lines_of({{{"text", "one two three"}, {"language", "fi"}},  // 13 bytes
                             {{"text", "write to someone@example.com"}, {"language", "fi"}},  // 28
                             {{"text", "idiot here"}, {"language", "sv"}}}));                 // 10
    run(curation(fmt::format("text_key: text\nsteps:\n  - words: {{lists: ['{}']}}\n"
                             "  - personal_data:\n",
                             (directory_ / "words.txt").string()),
                 {"a.jsonl"}, "out"));
  }
  static Json with(const Json& list, const std::string& key, const Json& value) {
    Json found = Json::array();
    for (const Json& one : list)
      if (one.at(key) == value) found.push_back(one);
    return found;
  }
  TemporaryDirectory directory_;
};

TEST_F(Explore, ACurationInClosedForm) {
  curate_three();
  const Json shown = explored_overview(directory_ / "out");
  EXPECT_EQ(shown["kind"], "curation");
  EXPECT_EQ(shown["is_complete"], true);
  EXPECT_EQ(shown["read"], (Json{{"documents", 3}, {"bytes", 51}}));
  EXPECT_EQ(shown["kept"], (Json{{"documents", 2}, {"bytes", 33}}));  // <email-pii>: 8 bytes less
  ASSERT_EQ(shown["steps"].size(), 2u);
  EXPECT_EQ(shown["steps"][0]["rules"],
            Json::parse(R"([{"rule": "words.listed", "documents": 1, "bytes": 10, "languages":
                             [{"language": "sv", "documents": 1, "bytes": 10}]}])"));
  EXPECT_EQ(shown["steps"][0]["out"], (Json{{"documents", 2}, {"bytes", 41}}));
  EXPECT_EQ(shown["steps"][1]["notes"], Json::parse(R"([{"name": "email", "count": 1}])"));
  // Bins of 13 bytes: 7 (from 11.3), 28: 9 (from 22.6), 20: 8, 10: 6. 3 words: 3, 2 words: 2.
  EXPECT_EQ(shown["languages"], Json::parse(R"([
    {"language": "fi", "documents_before": 2, "documents_after": 2,
     "bytes_before": [0,0,0,0,0,0,0,1,0,1], "bytes_after": [0,0,0,0,0,0,0,1,1],
     "words_before": [0,0,0,2], "words_after": [0,0,0,2]},
    {"language": "sv", "documents_before": 1, "documents_after": 0,
     "bytes_before": [0,0,0,0,0,0,1], "bytes_after": [],
     "words_before": [0,0,1], "words_after": []}])"));
  EXPECT_EQ(shown["edges"][7], 12);
  const Json& examples = shown["examples"];
  const Json removed = with(examples, "kind", "removed"),
             changed = with(examples, "kind", "changed");
  ASSERT_EQ(removed.size(), 1u);
  EXPECT_EQ(removed[0]["rule"], "words.listed");
  EXPECT_EQ(removed[0]["before"], "idiot here");
  EXPECT_EQ(removed[0]["language"], "sv");
  EXPECT_THAT(removed[0]["origin"].get<std::string>(), HasSubstr("a.jsonl:3"));
  ASSERT_EQ(changed.size(), 1u);
  EXPECT_EQ(changed[0]["rule"], "personal_data");
  EXPECT_EQ(changed[0]["before"], "write to someone@example.com");
  EXPECT_EQ(changed[0]["after"], "write to <email-pii>");
  const Json kept = with(examples, "kind", "kept");
  EXPECT_EQ(with(kept, "rule", "words").size(), 2u);
  ASSERT_EQ(with(kept, "rule", "personal_data").size(), 1u);
  EXPECT_EQ(with(kept, "rule", "personal_data")[0]["before"], "one two three");
  EXPECT_THAT(shown["recipe"].get<std::string>(), HasSubstr("personal_data:"));
  EXPECT_EQ(shown["inputs"]["files"], 1);
}

// Reports of several jobs are added.
TEST_F(Explore, ReportsOfTwoJobsAddUpToOne) {
  std::vector<Json> documents;
  for (int i = 0; i < 300; ++i)
    documents.push_back(
        {{"text", fmt::format("text {} mail{}@example.com",
                              std::string(static_cast<std::size_t>(i % 40), 'x'), i)},
         {"language", i % 3 == 0 ? "fi" : "sv"}});
  directory_.write("a.jsonl", lines_of({documents.begin(), documents.begin() + 120}));
  directory_.write("b.jsonl", lines_of({documents.begin() + 120, documents.end()}));
  const std::string recipe =
      "examples: 4\nsteps:\n  - gopher_quality: {min_doc_words: 0, min_stop_words: 0}\n"
      "  - personal_data:\n";
  const CurationReport whole = run(curation(recipe, {"a.jsonl", "b.jsonl"}, "whole")).report;
  CurateOptions small = curation(recipe, {"a.jsonl"}, "a");
  small.batch_bytes = 500;
  small.threads = 3;
  CurationReport sum = run(small).report;
  sum.add(run(curation(recipe, {"b.jsonl"}, "b")).report, 4);
  EXPECT_EQ(sum.examples.json(), whole.examples.json());
  EXPECT_EQ(json_of(sum.lengths), json_of(whole.lengths));
  EXPECT_GE(whole.examples.lists().size(), 2u);
  for (const auto& [key, list] : whole.examples.lists()) EXPECT_LE(list.size(), 4u);
}

// What a record has as its language may be anything.
TEST_F(Explore, OnlyLabelsAreLanguages) {
  std::vector<Json> documents;
  for (const char* language : {"fi", "<b>", "zh-Hans", "fin_Latn"})
    documents.push_back({{"text", "a b c"}, {"language", language}});
  documents.push_back({{"text", "a b c"}, {"language", std::string(1000, 'x')}});
  documents.push_back({{"text", "a b c"}, {"language", 5}});
  directory_.write("a.jsonl", lines_of(documents));
  const CurationReport report = run(curation("steps:\n  - repair:\n", {"a.jsonl"}, "out")).report;
  std::set<std::string> labels;
  for (const auto& [language, lengths] : report.lengths) labels.insert(language);
  EXPECT_EQ(labels, (std::set<std::string>{"", "fi", "fin_Latn", "other", "zh-Hans"}));
}

TEST_F(Explore, ADeduplicationInClosedForm) {
  std::vector<Json> first, second;
  for (int i = 0; i < 6; ++i)  // 0 three times, 1 twice, the others once
    first.push_back({{"text", fmt::format("text {}", i)}});
  for (const int i : {0, 0, 1, 7}) second.push_back({{"text", fmt::format("text {}", i)}});
  directory_.write("a.jsonl", lines_of(first));
  directory_.write("b.jsonl", lines_of(second));
  DedupOptions options;
  options.inputs = {directory_ / "a.jsonl", directory_ / "b.jsonl"};
  options.output = directory_ / "dedup";
  options.by = DedupBy::Text;
  options.threads = 1;
  deduplicate(options, {[](const std::string&, std::int64_t, const std::string&) {},
                        [](std::int64_t) {}, [] { return false; }});
  const Json shown = explored_overview(directory_ / "dedup");
  EXPECT_EQ(shown["kind"], "dedup");
  EXPECT_EQ(shown["by"], "text");
  EXPECT_EQ(shown["documents"], 10);
  EXPECT_EQ(shown["clusters"], 2);
  EXPECT_EQ(shown["duplicates"], 3);
  EXPECT_EQ(shown["kept"], 7);
  EXPECT_EQ(shown["sizes"], Json::parse(R"([{"from": 2, "clusters": 2, "to": 3}])"));
  ASSERT_EQ(shown["most"].size(), 2u);
  EXPECT_EQ(shown["most"][0]["documents"], 4);
  EXPECT_EQ(shown["most"][0]["kept"], 1);
  EXPECT_THAT(shown["most"][0]["file"].get<std::string>(), HasSubstr("b.jsonl"));
  for (const Json& stage : shown["stages"]) EXPECT_EQ(stage["units"], stage["finished"]);
  const Json sample = explored_sample(directory_ / "dedup", 1, 100);
  std::set<std::string> texts;
  for (const Json& one : sample["documents"]) texts.insert(one["text"]);
  EXPECT_EQ(texts.size(), 7u);
  fs::remove(directory_ / "dedup/clusters/00000.json");
  EXPECT_EQ(explored_overview(directory_ / "dedup")["clusters"], nullptr) << "not finished";
}

// ---- random documents

TEST_F(Explore, SamplesDependOnTheSeedOnly) {
  std::vector<fs::path> files;
  for (const char* name : {"documents-0.jsonl", "documents-1.jsonl"}) {
    std::vector<Json> documents;
    for (int i = 0; i < 500; ++i)
      documents.push_back({{"text", fmt::format("{} {}", name, i)}, {"origin", "o"}});
    directory_.write(name, lines_of(documents));
    files.push_back(directory_ / name);
  }
  const auto texts = [&](std::uint64_t seed) {
    std::vector<std::string> all;
    for (const SampledDocument& one : draw_documents(files, "text", seed, 20).documents) {
      all.push_back(one.text);
      EXPECT_EQ(one.text.substr(0, one.file.size()), one.file);
      EXPECT_EQ(one.origin, "o");
    }
    return all;
  };
  const auto first = texts(1);
  EXPECT_EQ(first.size(), 20u);
  EXPECT_EQ(texts(1), first);
  EXPECT_NE(texts(2), first);
  EXPECT_EQ((std::set<std::string>(first.begin(), first.end()).size()), 20u) << "each once";
  std::set<char> seen;
  for (const std::string& one : first) seen.insert(one[10]);
  EXPECT_EQ(seen.size(), 2u) << "of both files";
}

// Frames are found without reading what is before them.
TEST_F(Explore, SamplesReachAllFramesOfACompressedFile) {
  std::vector<Json> documents;
  for (int i = 0; i < 2000; ++i)
    documents.push_back({{"text", fmt::format("{:04} {}", i, std::string(500, 'x'))}});
  directory_.write("a.jsonl", lines_of(documents));
  for (const CorpusCompression packing : {CorpusCompression::Zstd, CorpusCompression::Gzip}) {
    CurateOptions options =
        curation("steps:\n  - repair:\n", {"a.jsonl"}, fmt::format("out{}", int(packing)));
    options.compression = packing;
    options.batch_bytes = 50000;  // about 100 documents in a frame
    run(options);
    std::set<int> hundreds;
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      const Json sample = explored_sample(options.output, seed, 40);
      for (const Json& one : sample["documents"])
        hundreds.insert(std::stoi(one["text"].get<std::string>()) / 100);
    }
    EXPECT_GT(hundreds.size(), 15u) << "of 20";
  }
}

TEST_F(Explore, SamplesOfHugeFilesReadLittle) {
  const std::string line = R"({"text": "first"})"
                           "\n";
  directory_.write("documents-0.jsonl", line);
  directory_.write("documents-1.jsonl", "\x28\xb5\x2f\xfd no frame");
  for (const char* name : {"documents-0.jsonl", "documents-1.jsonl"})
    fs::resize_file(directory_ / name, std::uintmax_t{1} << 40);
  const DocumentSample sample = draw_documents(
      {directory_ / "documents-0.jsonl", directory_ / "documents-1.jsonl"}, "text", 1, 2);
  EXPECT_THAT(sample.documents, IsEmpty());
  EXPECT_NE(sample.problem, "");
}

TEST_F(Explore, WhatIsNoDocumentIsNoted) {
  directory_.write("documents-0.jsonl", "{\"text\": 5}\n{\"text\": \"a\"}\nnone\n");
  const DocumentSample sample =
      draw_documents({directory_ / "documents-0.jsonl", directory_ / "nosuch"}, "text", 1, 5);
  EXPECT_EQ(sample.documents.size(), 1u);
  EXPECT_THAT(sample.problem, HasSubstr("documents-0.jsonl has a line that is no document"));
}

// ---- files that nobody vouches for

TEST_F(Explore, DamagedFilesAreOneSentence) {
  const auto problem = [&] {
    const std::string text = user_error_of([&] { explored_overview(directory_ / "out"); });
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_EQ(user_error_of([&] { explored_sample(directory_ / "out", 1, 1); }), text);
    return text;
  };
  EXPECT_THAT(problem(), HasSubstr("out is no directory"));
  fs::create_directory(directory_ / "out");
  EXPECT_THAT(problem(), AllOf(HasSubstr("curation.json"), HasSubstr("--output of kintsugi data")));
  const fs::path file = directory_ / "out/curation.json";
  const auto write = [&](const std::string& text) { std::ofstream(file) << text; };
  write("{");
  EXPECT_THAT(problem(), HasSubstr("curation.json is damaged"));
  write("{\"kintsugi_curation\": 1}");
  EXPECT_THAT(problem(), HasSubstr("curation.json was not written by"));
  write(std::string(100000, '['));
  EXPECT_THAT(problem(), HasSubstr("levels deep"));
  write("");
  fs::resize_file(file, std::uintmax_t{1} << 40);
  EXPECT_THAT(problem(), HasSubstr("has more than 64 MiB"));
  fs::remove(file);
  write_file_atomically(directory_ / "out/dedup.json",
                        R"({"kintsugi_dedup": 1, "by": "text", "tasks": 4e9, "inputs": []})");
  EXPECT_THAT(problem(), HasSubstr("dedup.json was not written by"));
}

TEST_F(Explore, AnUnfinishedCurationIsShownWithoutDocuments) {
  curate_three();
  fs::rename(directory_ / "out/curation.json", directory_ / "out/curation.progress.json");
  EXPECT_EQ(explored_overview(directory_ / "out")["is_complete"], false);
  EXPECT_TRUE(explored_sample(directory_ / "out", 1, 5)["documents"].empty());
}

}  // namespace
}  // namespace kintsugi
