// Deduplication against curation/make_minhash_cases.py, which restates it in Python.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "core/file.h"
#include "core/file_lock.h"
#include "core/hash.h"
#include "data/corpora/record_reader.h"
#include "data/dedup/dedup_job.h"
#include "data/dedup/minhash.h"
#include "data/tokenizers/unicode.h"
#include "support/dedup_fixture.h"
#include "support/paths.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const json& minhash_cases() {
  static const json cases = json::parse(
      read_text_file(fs::path(source_directory()) / "tests/data/curation/minhash_cases.json"));
  return cases;
}

std::string normalized(const std::string& text) {
  DedupText result;
  make_dedup_text(text, result);
  return result.text;
}

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

MinHashShape shape_of(const json& shape) {
  MinHashShape result;
  result.ngram = shape.value("words", 5);
  result.bands = shape.value("bands", 14);
  result.rows = shape.value("rows", 8);
  result.bits = shape.value("bits", 64);
  if (shape.value("hash", "") == "sha1") result.hash = ShingleHash::Sha1;
  return result;
}

TEST(MinHashTest, HasDatatrovesConstants) {
  const MinHash minhash({});
  const json& cases = minhash_cases();
  // Read from NumPy 1.24.
  EXPECT_EQ(minhash.a()[0], 775169054918279404u);
  EXPECT_EQ(minhash.a()[111], 223865076026037746u);
  EXPECT_EQ(minhash.b()[0], 1062448801025099917u);
  EXPECT_EQ(minhash.b()[111], 1097409548522419201u);
  EXPECT_EQ(cases["a"], json({minhash.a()[0], minhash.a()[111]}));
  EXPECT_EQ(cases["b"], json({minhash.b()[0], minhash.b()[111]}));
  EXPECT_EQ(shingle_hash("a b c d e", {}), 10121740836305097868u);
  MinHash::Scratch scratch;
  std::vector<std::uint64_t> signature;
  ASSERT_TRUE(minhash.signature("a b c d e", scratch, signature));
  ASSERT_EQ(signature.size(), 112u);
  signature.resize(8);
  EXPECT_THAT(signature,
              testing::ElementsAre(608970002929154467u, 47158559598946917u, 843810096883975682u,
                                   2253112919500401664u, 564260361951599900u, 1931151655228465943u,
                                   1266319503136411945u, 1731118713416821139u));
  EXPECT_FALSE(minhash.signature("a b c d", scratch, signature));
  EXPECT_FALSE(minhash.signature("", scratch, signature));
}

TEST(MinHashTest, HashesOfEveryLength) {
  MinHashShape narrow;
  narrow.bits = 32;
  for (const json& one : minhash_cases()["hashes"]) {
    std::string bytes;
    for (int i = 0; i < one[0].get<int>(); ++i) bytes += static_cast<char>(i);
    EXPECT_EQ(shingle_hash(bytes, {}), one[1].get<std::uint64_t>()) << one[0];
    EXPECT_EQ(shingle_hash(bytes, narrow), one[2].get<std::uint64_t>()) << one[0];
  }
}

// FIPS 180: the first eight bytes of SHA-1, little-endian.
TEST(MinHashTest, Sha1IsThatOfTheStandard) {
  MinHashShape shape;
  shape.hash = ShingleHash::Sha1;
  EXPECT_EQ(shingle_hash("abc", shape), 0x6a810647363e99a9u);
  EXPECT_EQ(shingle_hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", shape),
            0x6ed23b1c443e9884u);
  EXPECT_EQ(shingle_hash(std::string(64, 'a'), shape), 0x42165c4b82ba9800u);
}

TEST(DedupTextTest, IsDatatroves) {
  for (const json& one : minhash_cases()["normalized"]) {
    // Words are compared: marks alone between spaces leave two of them in Python.
    std::string expected;
    std::istringstream words(one[1].get<std::string>());
    for (std::string word; words >> word;) expected += (expected.empty() ? "" : " ") + word;
    EXPECT_EQ(normalized(one[0]), expected) << one[0];
  }
}

// Every character, alone and around digits and sigmas.
TEST(DedupTextTest, EveryCharacterIsDatatroves) {
  std::map<int, std::string> pages;
  const json& ranges = minhash_cases()["assigned"];
  for (std::size_t i = 0; i < ranges.size(); i += 2)
    for (auto c = ranges[i].get<char32_t>(); c <= ranges[i + 1].get<char32_t>(); ++c) {
      std::string one;
      utf8_append(one, c);
      pages[static_cast<int>(c >> 12)] +=
          one + " q aΣ" + one + " aΣ" + one + "a " + one + "Σ 1" + one + "2 ";
    }
  for (const auto& [page, text] : pages)
    EXPECT_EQ(hex64(shingle_hash(normalized(text), {})),
              minhash_cases()["pages"][std::to_string(page)].get<std::string>())
        << std::hex << page << "000";
}

// With m isolated words of n + 4 replaced, 5 m of n shingles differ on each side.
TEST(MinHashTest, FindsPairsWithTheProbabilityOfTheFormula) {
  constexpr int kPairs = 1500, kShingles = 100;
  const MinHash minhash({});
  MinHash::Scratch scratch;
  std::mt19937_64 random(3);
  const auto word = [&] {  // without digits
    std::string letters;
    for (int i = 0; i < 12; ++i) letters += static_cast<char>('a' + random() % 26);
    return letters;
  };
  const auto join = [](const std::vector<std::string>& words) {
    return fmt::format("{}", fmt::join(words, " "));
  };
  for (int changed = 1; changed <= 8; ++changed) {
    int found = 0;
    for (int pair = 0; pair < kPairs; ++pair) {
      std::vector<std::string> words(kShingles + 4);
      for (std::string& one : words) one = word();
      std::vector<std::uint64_t> a, b;
      minhash.signature(join(words), scratch, a);
      for (int i = 0; i < changed; ++i) words[static_cast<std::size_t>(4 + 10 * i)] = word();
      minhash.signature(join(words), scratch, b);
      bool equal = false;
      for (auto left = a.begin(), right = b.begin(); left != a.end(); left += 8, right += 8)
        equal |= std::equal(left, left + 8, right);
      found += equal ? 1 : 0;
    }
    const double k = 5.0 * changed, s = (kShingles - k) / (kShingles + k);
    const double p = 1 - std::pow(1 - std::pow(s, 8), 14);
    EXPECT_NEAR(found, kPairs * p, 4.5 * std::sqrt(kPairs * p * (1 - p)) + 0.5) << "s = " << s;
  }
}

class DedupTest : public DedupFixture {
 protected:
  void write_cases() {
    int number = 0;
    for (const json& file : minhash_cases()["files"])
      write_input(fmt::format("in{}.jsonl", number++), file.get<std::vector<std::string>>());
  }
};

TEST_F(DedupTest, WritesDatatrovesBytes) {
  write_cases();
  int number = 0;
  for (const json& one : minhash_cases()["chains"]) {
    options_.output = directory_ / fmt::format("out{}", number++);
    options_.tasks = one["tasks"];
    options_.shape = shape_of(one["shape"]);
    const DedupReport report = run();
    EXPECT_FALSE(report.stopped);
    std::map<std::string, std::string> expected;
    for (std::size_t band = 0; band < one["dups"].size(); ++band)
      expected[fmt::format("pairs/{:05}_00.dups", band)] = one["dups"][band];
    for (std::size_t task = 0; task < options_.tasks; ++task)
      for (const std::string kind : {"remove", "sizes"})
        if (const std::string bytes = one[kind][task]; !bytes.empty())
          expected[fmt::format("clusters/{:06}.{}", task, kind)] = bytes;
    std::map<std::string, std::string> found;
    for (const auto& [name, bytes] : contents()) {
      if (name.starts_with("pairs/") || name.starts_with("clusters/")) found[name] = hex(bytes);
      if (!name.starts_with("signatures/")) continue;
      const std::size_t band = std::stoul(name.substr(18)), task = std::stoul(name.substr(22));
      EXPECT_EQ(sha256_hex(bytes).substr(0, 32),
                one["signatures_sha256"][task][band].get<std::string>())
          << name;
    }
    EXPECT_EQ(found, expected) << one["shape"];
  }
}

TEST_F(DedupTest, ThreadsMemoryAndJobsDoNotMatter) {
  write_cases();
  options_.tasks = 3;
  run();
  const auto expected = contents();
  for (const std::size_t jobs : {1u, 2u, 5u}) {
    options_.output = directory_ / fmt::format("jobs{}", jobs);
    options_.memory = jobs == 1 ? 1 << 20 : 4000;  // in small runs
    options_.threads = 1 + jobs;
    run_arrays(jobs);
    EXPECT_TRUE(contents() == expected) << jobs;
  }
}

// Which document of a cluster stays depends on their order, the clusters do not.
TEST_F(DedupTest, TheNumberOfTasksDoesNotChangeTheClusters) {
  write_cases();
  const DedupReport expected = run();
  for (const std::size_t tasks : {1u, 2u, 4u, 9u}) {
    options_.output = directory_ / fmt::format("tasks{}", tasks);
    options_.tasks = tasks;
    const DedupReport report = run();
    EXPECT_EQ(report.clusters, expected.clusters);
    EXPECT_EQ(report.duplicates, expected.duplicates);
  }
}

TEST_F(DedupTest, KeepsOneOfEachCluster) {
  write_cases();
  for (const std::string packing : {"zst", "gz"}) {
    options_.cluster_size = packing == "gz";
    options_.packing = packing;
    const DedupReport report = run();
    EXPECT_EQ(report.empty, 2);
    EXPECT_EQ(report.kept, report.documents - report.duplicates);
    std::map<std::pair<std::string, std::string>, int> given;
    for (const fs::path& input : options_.inputs) {
      RecordReader reader(input);
      for (Record record; reader.next(record);) {
        const json one = json::parse(record.bytes);
        ++given[{one["id"], one["text"]}];
      }
    }
    std::int64_t sizes = 0;
    for (const json& one : kept()) {
      EXPECT_GT((given[{one["id"], one["text"]}]--), 0);
      sizes += one.value("minhash_cluster_size", 0);
    }
    EXPECT_EQ(std::ssize(kept()), report.kept);
    EXPECT_EQ(sizes, options_.cluster_size ? report.documents : 0);
    EXPECT_FALSE(
        fs::exists(options_.output / "kept" / (packing == "gz" ? "00000.jsonl.zst" : "x")));
  }
}

TEST_F(DedupTest, ReplacesAnOldClusterSize) {
  options_.cluster_size = true;
  options_.inputs = {directory_.write("a.jsonl",
                                      "{\"minhash_cluster_size\": 7, \"text\": \"a b c d e\"}\n"
                                      "{\"text\": \"A, b c d e!\", \"url\": \"x\"} \n")};
  EXPECT_EQ(run().duplicates, 1);
  ASSERT_EQ(kept().size(), 1u);
  EXPECT_EQ(kept()[0], json({{"minhash_cluster_size", 2}, {"text", "a b c d e"}}));
}

TEST_F(DedupTest, ManyEqualDocumentsLeaveTheFirst) {
  for (const int file : {0, 1, 2})
    write_input(fmt::format("{}.jsonl", file),
                std::vector<std::string>(5000, "this is the very same page"));
  options_.memory = 1 << 20;
  const DedupReport report = run();
  EXPECT_EQ(report.pairs, 14 * 14999);
  EXPECT_EQ(report.clusters, 1);
  ASSERT_EQ(report.kept, 1);
  EXPECT_EQ(kept()[0]["id"], "0.jsonl");
}

TEST_F(DedupTest, EqualTextsAndEqualUrls) {
  options_.inputs = {directory_.write("a.jsonl",
                                      R"({"text": "one", "url": "http://x/1"}
{"text": "", "url": "http://x/1"}
{"text": "two", "url": "http://x/1"}
{"text": "one", "url": ""}
{"text": "One", "url": ""}
)"),
                     directory_.write("b.jsonl", R"({"text": "two", "url": "http://x/2"}
)")};
  options_.by = DedupBy::Text;
  run();
  EXPECT_THAT(kept_texts(), testing::ElementsAre("one", "two", "One"));
  options_.by = DedupBy::Url;
  EXPECT_THAT(mistake(), AllOf(HasSubstr("other settings"), HasSubstr("by was")));
  options_.output = directory_ / "url";
  EXPECT_EQ(run().without_signature, 2);
  EXPECT_THAT(kept_texts(), testing::ElementsAre("one", "one", "One", "two"));
}

TEST_F(DedupTest, PlainTextIsOneDocument) {
  for (const char* name : {"a.txt", "b.txt"})
    options_.inputs.emplace_back(directory_.write(name, "Some \xFFtext\nwith \"five\" words"));
  EXPECT_EQ(run().duplicates, 1);
  EXPECT_THAT(kept_texts(), testing::ElementsAre("Some \uFFFDtext\nwith \"five\" words"));
  options_.output = directory_ / "url";
  options_.by = DedupBy::Url;
  EXPECT_THAT(mistake(), HasSubstr("plain text"));
}

TEST_F(DedupTest, RepeatedRunsDoNothing) {
  write_cases();
  EXPECT_EQ(run().done_before, 0);
  const auto before = contents();
  const DedupReport again = run();
  EXPECT_EQ(again.done_before, again.units);
  EXPECT_EQ(again.units, 5 + 14 + 1 + 5);
  EXPECT_TRUE(contents() == before);
}

TEST_F(DedupTest, RefusesASecondJob) {
  write_cases();
  run();
  std::string holder;
  auto lock = FileLock::try_take(options_.output / "dedup.lock", holder);
  ASSERT_TRUE(lock);
  EXPECT_THAT(mistake(), HasSubstr("is being written by process"));
  lock.reset();
  lock = FileLock::try_take(options_.output / "signatures/00003.lock", holder);
  fs::remove(options_.output / "signatures/00003.json");
  options_.stage = DedupStage::Signatures;
  EXPECT_THAT(mistake(), AllOf(HasSubstr("signatures 3 of"), HasSubstr("is being written by")));
}

TEST_F(DedupTest, RefusesOtherSettingsAndInputs) {
  write_cases();
  run();
  const DedupOptions before = options_;
  options_.shape.rows = 7;
  EXPECT_THAT(mistake(), AllOf(HasSubstr("minhash was"), HasSubstr("\"rows\":7")));
  options_ = before;
  options_.inputs.pop_back();
  options_.tasks = 5;
  EXPECT_THAT(mistake(), HasSubstr("other inputs"));
  options_.overwrite = true;
  EXPECT_EQ(run().done_before, 0);
  options_.output = directory_.path();
  EXPECT_THAT(mistake(), HasSubstr("--output"));
  options_.output = directory_ / "foreign";
  fs::create_directory(options_.output);
  directory_.write("foreign/thesis.tex", "");
  EXPECT_THAT(mistake(), HasSubstr("thesis.tex"));
}

TEST_F(DedupTest, StagesNeedTheOnesBefore) {
  write_cases();
  for (const auto& [stage, needed] : {std::pair{DedupStage::Pairs, "--stage signatures"},
                                      {DedupStage::Clusters, "--stage signatures"},
                                      {DedupStage::Remove, "--stage signatures"}}) {
    options_.stage = stage;
    EXPECT_THAT(mistake(), AllOf(HasSubstr("does not exist"), HasSubstr(needed)));
  }
}

TEST_F(DedupTest, NamesDamagedFiles) {
  write_cases();
  run();
  const auto whole = contents();
  const auto damaged = [&](const std::string& name, std::string bytes, DedupStage again) {
    for (const auto& [file, content] : whole) directory_.write("out/" + file, content);
    directory_.write("out/" + name, bytes);
    for (const DedupStage stage : {DedupStage::Pairs, DedupStage::Clusters, DedupStage::Remove})
      if (stage >= again)
        for (int unit = 0; unit < 14; ++unit)
          fs::remove(options_.output /
                     fmt::format("{}/{:05}.json",
                                 stage == DedupStage::Remove ? "kept" : to_string(stage), unit));
    const std::string message = mistake();
    EXPECT_THAT(message, AllOf(HasSubstr(name), HasSubstr("is damaged")));
    EXPECT_EQ(message.find('\n'), std::string::npos);
    return message;
  };
  // From the last stage on: an earlier one would be repeated.
  const std::string pairs = "pairs/00002_00.dups", removed = "clusters/000001.remove";
  damaged(removed, whole.at(removed) + "ab", DedupStage::Remove);
  damaged(pairs, whole.at(pairs).substr(5), DedupStage::Clusters);
  const std::string signature = "signatures/bucket_003/00001.minhash.sig";
  std::string bytes = whole.at(signature);
  EXPECT_THAT(damaged(signature, bytes.substr(0, bytes.size() - 7), DedupStage::Pairs),
              HasSubstr(fmt::format("{} bytes", bytes.size())));
  damaged(signature, bytes.substr(68), DedupStage::Pairs);
  damaged(signature, bytes.substr(68) + bytes.substr(0, 68), DedupStage::Pairs);
  std::string flipped = bytes;
  flipped.back() ^= 4;
  EXPECT_THAT(damaged(signature, flipped, DedupStage::Pairs), HasSubstr("checksum"));
}

TEST_F(DedupTest, ReportsInvalidLines) {
  options_.inputs = {directory_.write("a.jsonl",
                                      "{\"text\": \"a b c d e\"}\n{\"text\": 5}\n"
                                      "{\"text\": \"a b c d e\"}\n")};
  EXPECT_THAT(mistake(), AllOf(HasSubstr("a.jsonl, line 2"), HasSubstr("not a string")));
  options_.skip_invalid = true;
  options_.overwrite = true;
  const DedupReport report = run();
  EXPECT_EQ(report.invalid, 1);
  EXPECT_EQ(report.documents, 2);
  EXPECT_EQ(report.kept, 1);
}

// A program that deduplicates these inputs has more tasks than files: the others are empty.
TEST_F(DedupTest, TasksWithoutFilesAreEmpty) {
  write_input("a.jsonl", {"a b c d e", "a b c d e"});
  options_.tasks = 3;
  EXPECT_EQ(run().kept, 1);
  EXPECT_EQ(fs::file_size(options_.output / "signatures/bucket_013/00002.minhash.sig"), 0u);
}

TEST_F(DedupTest, StopsBetweenDocuments) {
  write_cases();
  run();
  const auto expected = contents();
  options_.output = directory_ / "stopped";
  int stops = 0;
  for (int allowed = 1; stops < 200; allowed += 2) {
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
