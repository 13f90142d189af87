#include "data/corpora/tokenize_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "core/file.h"
#include "data/stores/token_store.h"
#include "support/compress.h"
#include "support/errors.h"
#include "support/small_run.h"
#include "support/temporary_directory.h"
#include "support/token_files.h"
#include "support/word_tokenizer.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Ids = std::vector<std::int32_t>;

class TokenizeJobTest : public testing::Test {
 protected:
  void SetUp() override {
    std::mt19937 random(17);
    std::string first, second;
    for (int i = 0; i < 400; ++i) {
      std::string text = small_corpus(static_cast<int>(random() % 12));
      if (i % 50 == 3) text.clear();
      (i < 250 ? first : second) += nlohmann::json({{"id", i}, {"text", text}}).dump() + "\n";
      if (!text.empty()) texts_.push_back(text);
    }
    inputs_ = {directory_.write("a.jsonl", first), directory_.write("b.jsonl.zst", zstd(second)),
               directory_.write("c.txt.gz", gzip(small_corpus(60'000))),
               directory_.write("d.txt", "")};
    texts_.push_back(small_corpus(60'000));
    options_.inputs = inputs_;
    options_.output = directory_ / "out";
    options_.end_of_document = 0;
    options_.threads = 2;
    options_.batch_bytes = 20'000;
  }
  std::string path(const std::string& name) { return (directory_ / name).string(); }
  std::string content(const std::string& name) { return read_text_file(directory_ / name); }
  // The files of a store: ending -> content.
  std::map<std::string, std::string> store(const std::string& prefix) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(directory_.path())) {
      const std::string name = entry.path().filename();
      if (name.starts_with(prefix) && (name[prefix.size()] == '.' || name[prefix.size()] == '-'))
        files[name.substr(prefix.size())] = read_text_file(entry.path());
    }
    return files;
  }
  std::vector<std::string> endings(const std::string& prefix) {
    std::vector<std::string> names;
    for (const auto& [name, bytes] : store(prefix)) names.push_back(name);
    return names;
  }
  TokenizeResult run(const std::function<bool(const TokenizeProgress&)>& progress =
                         [](const TokenizeProgress&) { return true; }) {
    return tokenize(tokenizer_, options_, progress);
  }

  TemporaryDirectory directory_;
  std::vector<fs::path> inputs_;
  std::vector<std::string> texts_;  // of the non-empty documents
  TokenizeOptions options_;
  WordTokenizer tokenizer_;
};

TEST_F(TokenizeJobTest, WritesWhatTheTokenizerSays) {
  const TokenizeResult result = run();
  std::vector<Ids> documents;
  std::int64_t bytes = 0;
  for (const std::string& text : texts_) {
    documents.emplace_back();
    tokenizer_.encode(text, documents.back(), SpecialTokens::AsText);
    documents.back().push_back(0);
    bytes += static_cast<std::int64_t>(text.size());
  }
  write_megatron(path("expected"), TokenType::U16, documents);
  EXPECT_EQ(content("out.bin"), content("expected.bin"));
  EXPECT_EQ(content("out.idx"), content("expected.idx"));
  EXPECT_EQ(result.state, TokenizeResult::State::Finished);
  EXPECT_EQ(result.progress.counts.empty_documents, 400 - static_cast<int>(texts_.size()) + 1);
  EXPECT_EQ(result.progress.counts.text_bytes, bytes);
  EXPECT_EQ(result.progress.input_bytes, result.progress.input_bytes_total);
  EXPECT_THAT(endings("out"), ElementsAre(".bin", ".idx", ".json"));
  const auto info = read_store_info(path("out"));
  ASSERT_TRUE(info);
  EXPECT_EQ(info->documents, static_cast<std::int64_t>(texts_.size()));
  EXPECT_EQ(info->bytes, bytes);
  EXPECT_EQ(info->vocab_size, 50'000);
}

TEST_F(TokenizeJobTest, ThreadsAndBatchesDoNotMatter) {
  run();
  const auto expected = store("out");
  for (const auto& [threads, batch] : {std::pair{1, 1u}, {5, 3000u}, {3, 1u << 20}}) {
    options_.output = directory_ / "other";
    options_.overwrite = true;
    options_.threads = threads;
    options_.batch_bytes = batch;
    run();
    auto found = store("other");
    EXPECT_EQ(found[".bin"], expected.at(".bin"));
    EXPECT_EQ(found[".idx"], expected.at(".idx"));
  }
}

// A job that is stopped repeatedly, after any batch and with varying threads, writes the same
// bytes.
TEST_F(TokenizeJobTest, StoppedJobsGoOn) {
  for (const std::int64_t shard_bytes : {0, 6000}) {
    options_.shard_bytes = shard_bytes;
    options_.batch_bytes = 1500;
    options_.output = directory_ / "whole";
    options_.overwrite = true;
    run();
    auto expected = store("whole");
    const std::string name = "stopped" + std::to_string(shard_bytes);
    options_.output = directory_ / name;
    std::mt19937 random(31);
    int stops = 0;
    TokenizeResult result;
    do {
      int batches = static_cast<int>(random() % 12);
      options_.threads = 1 + static_cast<int>(random() % 3);
      result = run([&](const TokenizeProgress&) { return batches-- > 0; });
      options_.overwrite = false;
      if (result.state == TokenizeResult::State::Stopped) {
        ++stops;
        EXPECT_THAT(endings(name), AllOf(Contains(".progress.json"), Not(Contains(".bin")),
                                         Not(Contains(".idx")), Not(Contains("-00000.idx"))));
        EXPECT_THAT(user_error_of([&] { open_token_store(path(name)); }), HasSubstr("interrupted"));
      }
    } while (result.state == TokenizeResult::State::Stopped);
    EXPECT_GT(stops, 5);
    auto found = store(name);
    for (auto* files : {&expected, &found}) files->erase(".json");  // lists the names of the shards
    EXPECT_EQ(found.size(), expected.size());
    EXPECT_TRUE(found == expected);
    EXPECT_EQ(read_store_info(path(name))->documents, read_store_info(path("whole"))->documents);
    EXPECT_EQ(open_token_store(path(name)).size(), static_cast<std::size_t>(result.shards));
    EXPECT_EQ(result.shards > 3, shard_bytes > 0);
  }
}

// The job was killed while it renamed its shards: only some have their final names.
TEST_F(TokenizeJobTest, FinishesTheRenaming) {
  options_.shard_bytes = 5000;
  run();
  const auto expected = store("out");
  const auto info = read_store_info(path("out"));
  for (int renamed = 0; renamed < 12; ++renamed) {
    TokenizeJournal journal;
    journal.made_from = info->made_from;
    journal.shards = info->shards;
    journal.counts.documents = info->documents;
    journal.counts.tokens = info->tokens;
    journal.counts.text_bytes = info->bytes;
    journal.all_written = true;
    write_journal(path("out"), journal);
    fs::remove(path("out.json"));
    int index = 0;
    for (const auto& shard : info->shards)
      for (const char* ending : {".bin", ".idx"})
        if (index++ >= renamed)
          fs::rename(path(shard.name + ending), path(shard.name + ".partial" + ending));
    EXPECT_EQ(run().state, TokenizeResult::State::Finished);
    EXPECT_TRUE(store("out") == expected) << renamed;
  }
}

TEST_F(TokenizeJobTest, ShardsHaveTheSizeAskedFor) {
  options_.shard_bytes = 5000;
  run();
  std::string all;
  const auto shards = open_token_store(path("out"));
  EXPECT_GT(shards.size(), 5u);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    EXPECT_TRUE(shards[i].tokens() * 2 >= 5000 || i + 1 == shards.size());
    all += read_text_file(shards[i].name() + ".bin");
  }
  options_.shard_bytes = 0;
  options_.output = directory_ / "one";
  run();
  EXPECT_EQ(all, content("one.bin"));
  // Replacing a store of several shards by one shard removes all old files.
  options_.output = directory_ / "out";
  options_.overwrite = true;
  run();
  EXPECT_THAT(endings("out"), ElementsAre(".bin", ".idx", ".json"));
}

TEST_F(TokenizeJobTest, FinishedJobsAreLeftAlone) {
  run();
  const auto time = fs::last_write_time(path("out.bin"));
  EXPECT_EQ(run().state, TokenizeResult::State::WasComplete);
  EXPECT_EQ(fs::last_write_time(path("out.bin")), time);
  options_.end_of_document = 1;
  EXPECT_THAT(user_error_of([&] { run(); }),
              AllOf(HasSubstr("end_of_document"), HasSubstr("--overwrite")));
  options_.end_of_document = 0;
  options_.inputs.pop_back();
  EXPECT_THAT(user_error_of([&] { run(); }), HasSubstr("there were 4 inputs and are now 3"));
  options_.inputs = inputs_;
  directory_.write("a.jsonl", "{\"text\":\"changed\"}\n");
  EXPECT_THAT(user_error_of([&] { run(); }), AllOf(HasSubstr("a.jsonl"), HasSubstr("changed")));
  options_.overwrite = true;
  EXPECT_EQ(run().state, TokenizeResult::State::Finished);
  fs::remove(path("out.json"));
  options_.overwrite = false;
  EXPECT_THAT(user_error_of([&] { run(); }), HasSubstr("unknown"));
}

TEST_F(TokenizeJobTest, InputsMayNotChangeMeanwhile) {
  const auto change = [&](const TokenizeProgress&) {
    directory_.write("d.txt", "no longer empty");
    return true;
  };
  EXPECT_THAT(user_error_of([&] { run(change); }), AllOf(HasSubstr("d.txt"), HasSubstr("changed")));
  EXPECT_FALSE(fs::exists(path("out.idx")));
  EXPECT_THAT(user_error_of([&] { run(); }), AllOf(HasSubstr("d.txt"), HasSubstr("--overwrite")));
}

TEST_F(TokenizeJobTest, UnfinishedJobsOfAnotherKind) {
  run([](const TokenizeProgress&) { return false; });
  options_.format.text_key = "content";
  EXPECT_THAT(
      user_error_of([&] { run(); }),
      AllOf(HasSubstr("out.progress.json"), HasSubstr("text_key"), HasSubstr("--overwrite")));
  options_.format.text_key = "text";
  EXPECT_EQ(run().state, TokenizeResult::State::Finished);
  directory_.write("out.progress.json", "{]");
  EXPECT_THAT(user_error_of([&] { run(); }), HasSubstr("out.progress.json"));
}

TEST_F(TokenizeJobTest, MalformedLines) {
  std::string lines;
  for (int i = 0; i < 200; ++i)
    lines += i % 70 == 69 ? "{\"text\": oops}\n" : "{\"text\":\"a line of text\"}\n";
  options_.inputs = {directory_.write("bad.jsonl", lines)};
  options_.batch_bytes = 100;
  EXPECT_THAT(user_error_of([&] { run(); }), HasSubstr("bad.jsonl, line 70"));
  // The work before the error is kept, and --skip-invalid continues from there.
  EXPECT_THAT(endings("out"), Contains(".progress.json"));
  options_.skip_invalid = true;
  const TokenizeResult result = run();
  EXPECT_GT(result.progress.text_bytes_before, 0);
  EXPECT_EQ(result.progress.counts.invalid_lines, 2);
  EXPECT_EQ(result.progress.counts.documents, 198);
  EXPECT_THAT(result.first_invalid, HasSubstr("line 70"));
  EXPECT_EQ(TokenShard::open(path("out")).documents(), 198);
}

TEST_F(TokenizeJobTest, NothingDoneLeavesNothing) {
  options_.inputs = {directory_.write("bad.jsonl", "{\"content\":\"a\"}\n")};
  EXPECT_THAT(user_error_of([&] { run(); }),
              AllOf(HasSubstr("no key 'text'"), HasSubstr("'content'")));
  EXPECT_THAT(endings("out"), IsEmpty());
  options_.inputs = {directory_.write("empty.jsonl", "{\"text\":\"\"}\n\n")};
  EXPECT_THAT(user_error_of([&] { run(); }), HasSubstr("no document"));
  EXPECT_THAT(endings("out"), IsEmpty());
  options_.inputs = {directory_.write("cut.txt.gz", gzip(small_corpus(10)).substr(0, 40))};
  EXPECT_THAT(user_error_of([&] { run(); }), HasSubstr("truncated"));
  EXPECT_THAT(endings("out"), IsEmpty());
  options_.inputs = {directory_ / "nosuch"};
  EXPECT_THAT(user_error_of([&] { run(); }), HasSubstr("nosuch"));
}

TEST_F(TokenizeJobTest, PromptsCarryNoLoss) {
  options_.inputs = {directory_.write("p.jsonl",
                                      "{\"q\":\"abcdef\",\"text\":\"xyz\"}\n"
                                      "{\"q\":\"\",\"text\":\"uvw\"}\n")};
  options_.format.prompt_key = "q";
  run();
  const TokenShard shard = TokenShard::open(path("out"));
  ASSERT_TRUE(shard.has_mask());
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(shard.tokens()));
  shard.read_mask(0, mask);
  EXPECT_THAT(mask, ElementsAre(0, 0, 1, 1, 1, 1));
  Ids first(3), expected;
  shard.read(0, first);
  tokenizer_.encode("abcdef", expected, SpecialTokens::AsText);
  tokenizer_.encode("xyz", expected, SpecialTokens::AsText);
  EXPECT_EQ(first, expected);
  options_.inputs.push_back(inputs_[2]);
  EXPECT_THAT(user_error_of([&] { run(); }), AllOf(HasSubstr("c.txt.gz"), HasSubstr("JSONL")));
}

TEST_F(TokenizeJobTest, TypeFollowsTheVocabulary) {
  for (const auto& [vocab_size, type] :
       {std::pair{256, TokenType::U8}, {257, TokenType::U16}, {70'000, TokenType::I32}}) {
    options_.overwrite = true;
    tokenize(WordTokenizer(vocab_size), options_, [](const TokenizeProgress&) { return true; });
    EXPECT_EQ(TokenShard::open(path("out")).type(), type);
  }
}

// The reader is at most `capacity` batches ahead of the consumer.
TEST_F(TokenizeJobTest, QueueIsBounded) {
  TokenizePipeline::Options options;
  options.threads = 2;
  options.batch_bytes = 1000;
  TokenizePipeline pipeline(inputs_, tokenizer_, options);
  EncodedBatch batch;
  std::uint64_t taken = 0, most_ahead = 0;
  while (pipeline.next(batch)) {
    const std::uint64_t ahead = pipeline.batches_read() - taken++;
    most_ahead = std::max(most_ahead, ahead);
    EXPECT_LE(ahead, pipeline.capacity() + 1);
  }
  EXPECT_GT(taken, 3 * pipeline.capacity());
  EXPECT_GT(most_ahead, 0u);
}

TEST_F(TokenizeJobTest, PipelineCanBeAbandoned) {
  for (int i = 0; i < 20; ++i) {
    TokenizePipeline::Options options;
    options.threads = 3;
    options.batch_bytes = 1000;
    TokenizePipeline pipeline(inputs_, tokenizer_, options);
    EncodedBatch batch;
    for (int b = 0; b < i; ++b) ASSERT_TRUE(pipeline.next(batch));
  }
}

// PREFIX.json could be the corpus itself, or another file of the user.
TEST_F(TokenizeJobTest, LeavesFilesOfTheUserAlone) {
  const std::string line = "{\"text\":\"kissa istuu\"}\n";
  const std::string corpus = directory_.write("fi.json", line);
  fs::create_symlink(corpus, path("link.jsonl"));
  WordTokenizer tokenizer;
  options_.output = directory_ / "fi";
  const auto complaint = [&](const std::string& input) {
    options_.inputs = {input};
    return user_error_of(
        [&] { tokenize(tokenizer, options_, [](const TokenizeProgress&) { return true; }); });
  };
  for (const bool overwrite : {false, true}) {
    options_.overwrite = overwrite;
    EXPECT_THAT(complaint(corpus), AllOf(HasSubstr("fi.json"), HasSubstr("--output")));
    EXPECT_THAT(complaint(path("link.jsonl")), HasSubstr("link.jsonl"));
  }
  options_.overwrite = false;
  EXPECT_THAT(complaint(path("a.jsonl")), AllOf(HasSubstr("fi.json"), HasSubstr("--output")));
  EXPECT_EQ(content("fi.json"), line);
  EXPECT_FALSE(fs::exists(path("fi.partial.bin")));
}

}  // namespace
}  // namespace kintsugi
