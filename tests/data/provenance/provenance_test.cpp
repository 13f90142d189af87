// The history of data: what each stage records, the way back to original records, and data cards.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/curation/curation_report.h"
#include "data/provenance/card.h"
#include "data/provenance/origins.h"
#include "data/provenance/trace.h"
#include "data/stores/token_store.h"
#include "support/errors.h"
#include "support/program_test.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(RegisteredDomain, IsWhatARegistryHandsOut) {
  for (const auto& [url, domain] : std::vector<std::pair<std::string, std::string>>{
           {"https://www.news.example.org/today?x=y.z", "example.org"},
           {"http://user@Shop.Example.CO.UK:8080", "example.co.uk"},
           {"https://example.fi", "example.fi"},
           {"https://a.b.gov.pl/x", "b.gov.pl"},
           {"https://gov.pl/x", "gov.pl"},
           {"https://co.uk/", "co.uk"},
           {"https://com.example.net", "example.net"},
           {"http://192.0.2.7/", ""},
           {"http://[2001:db8::1]/", ""},
           {"http://localhost/", ""},
           {".", ""},
           {"", ""}})
    EXPECT_EQ(registered_domain(url), domain) << url;
}

TEST(Origins, AreFilesWithOrWithoutALine) {
  EXPECT_EQ(parse_origin("raw/a:b.jsonl:12").file, "raw/a:b.jsonl");
  EXPECT_EQ(parse_origin("raw/a:b.jsonl:12").line, 12u);
  for (const char* whole : {"a.txt", "a:", "a:x", "a:99999999999999999999999"}) {
    EXPECT_EQ(parse_origin(whole).file, whole);
    EXPECT_EQ(parse_origin(whole).line, 0u);
  }
}

TEST(TopDomains, AreATenthOrATwentieth) {
  CountsByName domains;
  for (int i = 0; i < 41; ++i)
    domains[fmt::format("d{:02}.fi", i)] = {.documents = 1, .bytes = i == 7 ? 1000 : 100 - i};
  const auto top = top_domains(domains, false);
  ASSERT_EQ(top.size(), 5u);
  EXPECT_EQ(top[0].first, "d07.fi");
  EXPECT_EQ(top[1].first, "d00.fi");
  EXPECT_EQ(top_domains(domains, true).size(), 3u);
  EXPECT_TRUE(top_domains({}, false).empty());
}

// 60 documents in two files of JSONL and one of text: two of three are kept, and 5 are repeated.
class DataHistoryTest : public ProgramTest {
 protected:
  // Without digits, which a deduplication takes for one.
  static std::string word_of(unsigned number) {
    std::string word;
    for (; number > 0; number /= 26) word += static_cast<char>('a' + number % 26);
    return word;
  }
  static std::string text_of(const std::string& file, int i) {
    std::string text = fmt::format("{} {}", file, i);
    for (int k = 0; k < 30 + i; ++k)
      text += " " + word_of(1000u + static_cast<unsigned>(file[0] * 7919 + i * 613 + k * 31));
    return text + (i % 5 == 0 ? " mail someone@example.com" : "");
  }
  void SetUp() override {
    fs::create_directory(directory_ / "raw");
    for (const std::string name : {"a", "b"}) {
      std::string lines;
      for (int i = 0; i < 30; ++i) {
        const bool copied = name == "b" && i < 5;  // of a's documents
        const char* const host = i % 3 == 0   ? "www.blocked.fi"
                                 : i % 3 == 1 ? "shop.one.co.uk"
                                              : "x.two.org";
        lines += Json{{"url", fmt::format("https://{}/{}", host, i)},
                      {"text", text_of(copied ? "a" : name, i)},
                      {"language", i % 2 == 0 ? "fi" : "sv"}}
                     .dump() +
                 "\n";
      }
      directory_.write("raw/" + name + ".jsonl", lines);
    }
    directory_.write("raw/c.txt", text_of("c", 1));
    directory_.write("block.txt", "blocked.fi\n");
    write_recipe("CC0-1.0");
    succeed("data curate recipe.yaml --input 'raw/*' --output curated --shard-size 4kB");
    succeed("data dedup 'curated/documents-*' --output unique --compression gzip --tasks 2");
    succeed(
        "data tokenize --input 'unique/kept/*.gz' --tokenizer bytes --output store "
        "--shard-size 5kB");
  }
  void write_recipe(const std::string& license) {
    directory_.write("recipe.yaml", fmt::format(R"(# of a test
sources:
  - {{name: alpha, files: [raw/a.jsonl], kind: crawled, license: '{}', date: 2025-11/2026-03-02}}
  - {{name: beta, files: ['raw/[bc]*'], kind: public, date: 2026, languages: [fi, sv]}}
steps:
  - urls: {{block: [block.txt]}}
  - personal_data:
)",
                                                license));
  }
  void succeed(const std::string& arguments) {
    const Outcome outcome = run_kintsugi(arguments);
    EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.error;
  }
  std::string mistake(const std::string& arguments) {
    const Outcome outcome = run_kintsugi(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.error, HasSubstr("error: "));
    return outcome.error;
  }
  Json check_card(const std::string& card) {
    const Outcome outcome = run_in_shell("python3 " + std::string(source_directory()) +
                                         "/tests/data/provenance/check_card.py " + card);
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    return Json::parse(outcome.out, nullptr, false);
  }
  std::string sha256sum(const std::string& file) {
    return run_in_shell("sha256sum < " + file).out.substr(0, 64);
  }
};

// 20 of 30 documents of a and of b are not blocked, c has no address; of the 5 that are in both,
// those with i = 1, 2 and 4 are not blocked.
TEST_F(DataHistoryTest, StagesCountBySourceAndDomain) {
  const auto record = read_curation_record(directory_ / "curated/curation.json");
  ASSERT_TRUE(record);
  const CountsBySource& sources = record->report.sources;
  ASSERT_EQ(sources.size(), 2u);
  EXPECT_EQ(sources.at("alpha").read.documents, 30);
  EXPECT_EQ(sources.at("beta").read.documents, 31);
  EXPECT_EQ(sources.at("alpha").kept.documents, 20);
  EXPECT_EQ(sources.at("beta").kept.documents, 21);
  EXPECT_EQ(sources.at("alpha").removed.at("urls.domain").at("fi").documents, 5);
  EXPECT_EQ(sources.at("alpha").removed.at("urls.domain").at("sv").documents, 5);
  EXPECT_EQ(sources.at("alpha").notes.at("personal_data.email"), 4);  // of 5, 10, 20, 25
  std::int64_t bytes = 0;
  for (const auto& [name, counts] : sources) bytes += counts.kept.bytes;
  EXPECT_EQ(bytes, record->report.kept().bytes);
  EXPECT_EQ(record->shards.size(), 3u);
  CountsByName domains, inputs;
  for (const CuratedShard& shard : record->shards) {
    const ShardOrigins origins = read_shard_origins(directory_ / "curated" / shard.file);
    add_counts(domains, origins.domains);
    add_counts(inputs, origins.inputs);
  }
  ASSERT_EQ(domains.size(), 2u);
  EXPECT_EQ(domains.at("one.co.uk").documents, 20);
  EXPECT_EQ(domains.at("two.org").documents, 20);
  EXPECT_EQ(inputs.at("raw/b.jsonl").documents, 20);
  EXPECT_EQ(inputs.at("raw/c.txt").documents, 1);
  const auto& files = record->provenance.inputs;
  ASSERT_EQ(files.size(), 3u);
  for (const InputFile& file : files) {
    EXPECT_EQ(file.sha256, sha256sum(file.file));
    EXPECT_EQ(file.source, file.file == "raw/a.jsonl" ? "alpha" : "beta");
  }
  EXPECT_EQ(record->provenance.recipe, content_of("recipe.yaml"));
  CountsBySource after;
  for (const char* task : {"00000", "00001"}) {
    const Json kept = Json::parse(content_of(fmt::format("unique/kept/{}.json", task)));
    add_counts(after, counts_by_source_of(kept["sources"]));
    for (const Json& input : kept["inputs"]) EXPECT_EQ(input["sha256"], sha256sum(input["path"]));
  }
  EXPECT_EQ(after.at("alpha").kept.documents + after.at("beta").kept.documents, 38);
  EXPECT_EQ(after.at("alpha").read, sources.at("alpha").kept);
  const auto info = read_store_info(directory_ / "store");
  ASSERT_TRUE(info);
  const std::vector<InputFile> kept = inputs_in(info->made_from, "store");
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0].documents + kept[1].documents, 38);
  EXPECT_EQ(kept[1].sha256, sha256sum("unique/kept/00001.jsonl.gz"));
}

// Every document of every shard, also of a merged store.
TEST_F(DataHistoryTest, WhereGoesBackToTheOriginalRecord) {
  succeed("data merge store store --output twice");
  for (const std::string store : {"store", "twice"}) {
    const std::vector<TokenShard> shards = open_token_store((directory_ / store).string());
    EXPECT_EQ(shards.size() > 1, store == "store");
    DocumentTracer tracer;
    int seen = 0, texts = 0;
    for (const TokenShard& shard : shards)
      for (std::int64_t d = 0; d < shard.documents(); ++d, ++seen) {
        const DocumentTrace trace = tracer.trace(shard, d);
        ASSERT_EQ(trace.problem, "");
        ASSERT_EQ(trace.records.size(), 3u);
        EXPECT_EQ(trace.records[0].stage, "deduplicated");
        EXPECT_EQ(trace.records[1].stage, "curated");
        const TracedRecord& original = trace.records[2];
        EXPECT_EQ(original.stage, "original");
        std::vector<std::int32_t> ids(
            static_cast<std::size_t>(shard.document_begin(d + 1) - shard.document_begin(d)));
        shard.read(shard.document_begin(d), ids);
        const std::string text(ids.begin(), ids.end());
        EXPECT_EQ(trace.records[0].text, text);
        EXPECT_EQ(trace.records[1].text, text);
        ASSERT_TRUE(original.source);
        const std::string name = fs::path(original.file).filename().string();
        if (name == "c.txt") {
          ++texts;
          EXPECT_EQ(original.line, 0u);
          EXPECT_EQ(original.text, text_of("c", 1));
          continue;
        }
        const int i = static_cast<int>(original.line) - 1;
        const bool copied = name == "b.jsonl" && i < 5;
        EXPECT_EQ(original.text, text_of(copied ? "a" : name.substr(0, 1), i));
        EXPECT_EQ(text.substr(0, 20), original.text.substr(0, 20));
        EXPECT_THAT(original.labels.url, testing::EndsWith(fmt::format("/{}", i)));
        EXPECT_EQ(original.source->name, name == "a.jsonl" ? "alpha" : "beta");
      }
    EXPECT_EQ(seen, store == "store" ? 38 : 76);
    EXPECT_EQ(texts, store == "store" ? 1 : 2);
  }
}

TEST_F(DataHistoryTest, WhereShowsOriginalRecords) {
  const std::string one = run_kintsugi("data where store --document 3").out;
  EXPECT_THAT(one, AllOf(HasSubstr("curated/documents-0"), HasSubstr("raw/a.jsonl:"),
                         HasSubstr("alpha"), HasSubstr("CC0-1.0"), HasSubstr("https://")));
  const Json third = Json::parse(run_kintsugi("data where store --document 3 --json").out);
  const Json token = Json::parse(
      run_kintsugi(fmt::format("data where store --token {} --json",
                               third["first_token"].get<int>() + third["tokens"].get<int>() - 1))
          .out);
  EXPECT_EQ(token, third);
  EXPECT_EQ(third["origin"]["records"][2]["source"]["license"], "CC0-1.0");
  directory_.write("run.yaml", small_config("store", "run", "steps: 40, eval_every: 0"));
  const Json samples =
      Json::parse(run_kintsugi("data where run.yaml --step 2 --records --json").out);
  ASSERT_EQ(samples.size(), 6u);
  for (const Json& sample : samples)
    for (const Json& document : sample["documents"])
      EXPECT_EQ(document["origin"]["records"].size(), 3u) << document.dump();
  EXPECT_THAT(mistake("data where store --token 999999"), HasSubstr("--token"));
  EXPECT_THAT(mistake("data where store --token 1 --document 1"), HasSubstr("--document"));
  fs::remove(directory_ / "raw/a.jsonl");
  EXPECT_THAT(run_kintsugi("data where store --document 3").out, HasSubstr("raw/a.jsonl"));
  directory_.write("plain.jsonl", "{\"text\": \"a\"}\n");
  succeed("data tokenize --input plain.jsonl --tokenizer bytes --output plain");
  EXPECT_THAT(run_kintsugi("data where plain --document 0").out, HasSubstr("plain.jsonl:1"));
  Json info = Json::parse(content_of("plain.json"));
  info["made_from"].erase("input_files");
  directory_.write("plain.json", info.dump());
  EXPECT_THAT(run_kintsugi("data where plain --document 0").out, HasSubstr("does not say"));
}

TEST_F(DataHistoryTest, ACardDescribesEachKindOfData) {
  succeed("data card unique --output card --set creator='A. Person' --set name=both");
  const Json unique = check_card("card");
  EXPECT_EQ(unique["documents"], 38);
  EXPECT_EQ(unique["domains"], 2);
  EXPECT_EQ(unique["inputs"], 3);
  EXPECT_EQ(unique["sources"], (Json{"alpha", "beta"}));
  EXPECT_EQ(unique["fields"]["text"], "sc:Text");
  EXPECT_EQ(unique["fields"]["origin"], "sc:Text");
  const std::string page = content_of("card/card.md");
  for (const char* part :
       {"CC0-1.0", "crawled", "urls.domain", "personal_data.email", "latest date of collection",
        "2026-03-02", "two.org", "to be added", "# of a test", "A. Person"})
    EXPECT_THAT(page, HasSubstr(part));
  EXPECT_THAT(content_of("card/card.html"), HasSubstr("<td>urls.domain</td>"));
  const Json croissant = Json::parse(content_of("card/croissant.json"));
  EXPECT_EQ(croissant["license"], "to be added");
  EXPECT_EQ(croissant["creator"]["name"], "A. Person");
  EXPECT_EQ(croissant["inLanguage"], (Json{"fi", "sv"}));
  succeed("data card store --output card --overwrite");
  const Json store = check_card("card");
  EXPECT_EQ(store["inputs"], 3);
  EXPECT_THAT(content_of("card/card.md"), HasSubstr("less than 1 billion tokens"));
  succeed("data card curated store --output card --overwrite");
  EXPECT_EQ(check_card("card")["inputs"], 3);
}

TEST_F(DataHistoryTest, ACardOfARunNamesItsData) {
  directory_.write("run.yaml",
                   small_config("store", "run", "steps: 2", "device: cpu\nthreads: 1\n"));
  succeed("train run.yaml");
  directory_.write("details.yaml",
                   "name: small\nlicense: CC0-1.0\nfiles_url: https://data.example/\n"
                   "sources: [{name: beta, license: GPL-3.0-or-later, kind: licensed}]\n");
  succeed("data card run --output card --details details.yaml --check-inputs");
  const Json croissant = Json::parse(content_of("card/croissant.json"));
  EXPECT_EQ(croissant["name"], "small");
  EXPECT_EQ(croissant["distribution"][0]["contentUrl"], "https://data.example/store-00000.bin");
  EXPECT_EQ(croissant["distribution"][0]["sha256"], sha256sum("store-00000.bin"));
  EXPECT_THAT(content_of("card/card.md"), HasSubstr("GPL-3.0-or-later"));
}

TEST_F(DataHistoryTest, DamageIsNamed) {
  const std::string original = content_of("unique/kept/00001.jsonl.gz");
  std::string damaged = original;
  damaged[damaged.size() / 2] ^= 1;
  directory_.write("unique/kept/00001.jsonl.gz", damaged);
  EXPECT_THAT(
      mistake("data card unique --output card"),
      AllOf(HasSubstr("00001.jsonl.gz has another content"), Not(HasSubstr("00000.jsonl"))));
  fs::remove(directory_ / "unique/kept/00001.jsonl.gz");
  EXPECT_THAT(mistake("data card unique --output card"), HasSubstr("00001.jsonl.gz"));
  EXPECT_FALSE(fs::exists(directory_ / "card"));
  directory_.write("unique/kept/00001.jsonl.gz", original);
  std::string raw = content_of("raw/b.jsonl");
  raw[raw.find("shop")] = 'S';
  directory_.write("raw/b.jsonl", raw);
  fs::remove(directory_ / "raw/a.jsonl");
  const Outcome unread = run_kintsugi("data card unique --output card");
  EXPECT_EQ(unread.code, 0) << unread.error;
  EXPECT_THAT(unread.out + unread.error, HasSubstr("raw/a.jsonl: missing"));
  EXPECT_THAT(content_of("card/card.md"), HasSubstr("missing"));
  const Outcome read = run_kintsugi("data card unique --output card --overwrite --check-inputs");
  EXPECT_THAT(read.out + read.error, HasSubstr("raw/b.jsonl: changed: its SHA-256"));
  EXPECT_EQ(check_card("card")["inputs"], 3);
}

TEST_F(DataHistoryTest, WhatIsSaidOfASourceMayBeCorrected) {
  const auto written = fs::last_write_time(directory_ / "curated/documents-00000.jsonl.zst");
  write_recipe("CC-BY-4.0");
  succeed("data curate recipe.yaml --input 'raw/*' --output curated --shard-size 4kB");
  const auto record = read_curation_record(directory_ / "curated/curation.json");
  EXPECT_EQ(record->provenance.sources[0].license, "CC-BY-4.0");
  EXPECT_EQ(record->provenance.inputs[0].sha256, sha256sum("raw/a.jsonl"));
  EXPECT_EQ(fs::last_write_time(directory_ / "curated/documents-00000.jsonl.zst"), written);
  const std::string recipe = content_of("recipe.yaml");
  std::string moved = recipe;
  moved.replace(moved.find("raw/a.jsonl"), 11, "raw/b.jsonl");
  directory_.write("recipe.yaml", moved);
  EXPECT_THAT(mistake("data curate recipe.yaml --input 'raw/*' --output curated --shard-size 4kB"),
              HasSubstr("sources of the inputs"));
}

TEST_F(DataHistoryTest, MistakesAreNamed) {
  for (const auto& [sources, problem] : std::vector<std::pair<std::string, std::string>>{
           {"[{files: [a]}]", "no name"},
           {"[{name: x}]", "no files"},
           {"[{name: x, files: [a]}, {name: x, files: [b]}]", "two sources"},
           {"[{name: x, files: [a], date: May}]", "2026-05-01"},
           {"[{name: x, files: [a], date: 2026-13}]", "2026-05-01"},
           {"[{name: x, files: [a], kind: found}]", "crawled"}}) {
    directory_.write("bad.yaml", "sources: " + sources + "\nsteps:\n  - repair:\n");
    EXPECT_THAT(mistake("data curate bad.yaml --input 'raw/*' --output new"), HasSubstr(problem));
  }
  directory_.write("notes/readme.txt", "");
  fs::create_directory(directory_ / "notes");
  EXPECT_THAT(mistake("data card notes --output card"), HasSubstr("no token store"));
  EXPECT_THAT(mistake("data card nosuch --output card"), HasSubstr("nosuch"));
  EXPECT_THAT(mistake("data card unique --output unique --overwrite"), HasSubstr("--output"));
  EXPECT_THAT(mistake("data card unique --output card --set nosuch=1"), HasSubstr("nosuch"));
  directory_.write("unique/kept/00001.json", "{\"documents\": 1, \"inputs\": 3}");
  EXPECT_THAT(mistake("data card unique --output card"), HasSubstr("00001.json is damaged"));
  fs::remove(directory_ / "unique/kept/00001.json");
  EXPECT_THAT(mistake("data card unique --output card"), HasSubstr("not finished"));
}

}  // namespace
}  // namespace kintsugi
