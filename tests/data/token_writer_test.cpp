#include "data/stores/token_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "core/file.h"
#include "core/hash.h"
#include "data/stores/store_check.h"
#include "data/stores/store_output.h"
#include "support/errors.h"
#include "support/temporary_directory.h"
#include "support/token_files.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Ids = std::vector<std::int32_t>;

class TokenWriterTest : public testing::Test {
 protected:
  std::string path(const std::string& name) { return (directory_ / name).string(); }
  std::string content(const std::string& name) { return read_text_file(directory_ / name); }
  std::vector<std::string> files() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path()))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  TemporaryDirectory directory_;
};

TEST_F(TokenWriterTest, WritesTheWorkedExample) {
  TokenWriter writer(path("a"), TokenType::U16);
  writer.append(Ids{1, 2});
  writer.append(Ids{3, 0});
  writer.end_document();
  writer.append(Ids{4, 0});
  writer.end_document();
  const StoreInfo::Shard shard = writer.finish();
  EXPECT_THAT(files(), ElementsAre("a.partial.bin", "a.partial.idx", "a.partial.lengths"));
  TokenWriter::publish(path("a"));
  EXPECT_THAT(files(), ElementsAre("a.bin", "a.idx"));
  EXPECT_EQ(content("a.idx"),
            from_hex("4d4d49444944580000 0100000000000000 08 0200000000000000 0300000000000000"
                     "04000000 02000000  0000000000000000 0800000000000000"
                     "0000000000000000 0100000000000000 0200000000000000"));
  EXPECT_EQ(content("a.bin"), from_hex("0100 0200 0300 0000 0400 0000"));
  EXPECT_EQ(shard.bin, hex64(hash64(content("a.bin"))));
  EXPECT_EQ(shard.idx, hex64(hash64(content("a.idx"))));
}

TEST_F(TokenWriterTest, EveryTypeAsMegatronWould) {
  std::mt19937 random(4);
  for (const TokenType type : {TokenType::U8, TokenType::U16, TokenType::I32}) {
    const unsigned most = type == TokenType::U8 ? 256 : type == TokenType::U16 ? 65536 : 200'000;
    std::vector<Ids> documents(50);
    for (Ids& document : documents) {
      document.resize(random() % 10'000);
      for (std::int32_t& id : document) id = static_cast<std::int32_t>(random() % most);
    }
    write_megatron(path("expected"), type, documents);
    TokenWriter writer(path("w"), type);
    for (const Ids& document : documents) {
      writer.append(document);
      writer.end_document();
    }
    writer.finish();
    TokenWriter::publish(path("w"));
    EXPECT_EQ(content("w.bin"), content("expected.bin"));
    EXPECT_EQ(content("w.idx"), content("expected.idx"));
  }
}

TEST_F(TokenWriterTest, LongDocumentsBecomeSeveralSequences) {
  TokenWriter::Options options;
  options.longest_sequence = 4;
  TokenWriter writer(path("a"), TokenType::U16, options);
  writer.append(Ids{1, 2, 3, 4, 5, 6, 7, 8, 9});
  writer.end_document();
  writer.append(Ids{1, 2, 3, 4});
  writer.end_document();
  writer.finish();
  TokenWriter::publish(path("a"));
  write_megatron(path("b"), TokenType::U16, {{1, 2, 3, 4}, {5, 6, 7, 8}, {9}, {1, 2, 3, 4}},
                 {0, 3, 4});
  EXPECT_EQ(content("a.idx"), content("b.idx"));
  EXPECT_EQ(content("a.bin"), content("b.bin"));
}

TEST_F(TokenWriterTest, ContinuesFromAnySync) {
  std::mt19937 random(8);
  TokenWriter::Options options;
  options.mask = true;
  options.longest_sequence = 700;
  const auto feed = [](TokenWriter& writer, unsigned block) {
    const Ids ids(block * 37 % 500, static_cast<std::int32_t>(block % 60'000));
    const std::vector<std::uint8_t> mask(ids.size(), block % 2);
    writer.append(ids, mask);
    if (block % 3 == 0) writer.end_document();
  };
  constexpr unsigned kBlocks = 300;  // a multiple of three: the last block ends its document
  TokenWriter whole(path("whole"), TokenType::U16, options);
  for (unsigned block = 1; block <= kBlocks; ++block) feed(whole, block);
  const auto expected = whole.finish();
  TokenWriter::publish(path("whole"));

  TokenWriter::State saved;
  unsigned saved_block = 1;
  for (int kill = 0; kill < 10; ++kill) {
    TokenWriter writer(path("killed"), TokenType::U16, options, saved);
    unsigned block = saved_block;
    const unsigned stop = std::min<unsigned>(kBlocks, block + random() % 60);
    for (; block < stop; ++block) feed(writer, block);
    writer.sync();
    saved = writer.state();
    saved_block = block;
    for (unsigned lost = block; lost < std::min(block + 20, kBlocks); ++lost) feed(writer, lost);
  }
  TokenWriter writer(path("killed"), TokenType::U16, options, saved);
  for (unsigned block = saved_block; block <= kBlocks; ++block) feed(writer, block);
  const auto found = writer.finish();
  TokenWriter::publish(path("killed"));
  for (const char* ending : {".bin", ".idx", ".mask"})
    EXPECT_EQ(content(std::string("killed") + ending), content(std::string("whole") + ending));
  EXPECT_EQ(found.bin, expected.bin);
  EXPECT_EQ(found.mask, expected.mask);
  saved.tokens += 1'000'000;
  EXPECT_THAT(user_error_of([&] { TokenWriter(path("killed"), TokenType::U16, options, saved); }),
              HasSubstr("shorter"));
}

TEST_F(TokenWriterTest, RefusesIdsThatDoNotFit) {
  TokenWriter writer(path("a"), TokenType::U16);
  EXPECT_THROW(writer.append(Ids{65536}), std::exception);
  EXPECT_THROW(writer.append(Ids{-1}), std::exception);
}

// ---- merge

TEST_F(TokenWriterTest, MergesStores) {
  const std::vector<Ids> a = {{1, 2}, {3}}, b = {{4}, {5, 6, 7}, {8}};
  write_megatron(path("a"), TokenType::I32, a);
  write_megatron(path("b"), TokenType::I32, b, {0, 2, 3});  // its first document has two sequences
  const StoreInfo info = merge_stores({path("a"), path("b.idx")}, path("m"), false);
  EXPECT_EQ(info.documents, 4);
  EXPECT_EQ(info.tokens, 8);
  write_megatron(path("expected"), TokenType::I32, {{1, 2}, {3}, {4}, {5, 6, 7}, {8}},
                 {0, 1, 2, 4, 5});
  EXPECT_EQ(content("m.bin"), content("expected.bin"));
  EXPECT_EQ(content("m.idx"), content("expected.idx"));
  EXPECT_FALSE(std::filesystem::exists(path("m.json"))) << "the tokenizer is unknown";
  EXPECT_THAT(files(), testing::Not(testing::Contains(HasSubstr("partial"))));

  EXPECT_THAT(user_error_of([&] { merge_stores({path("a")}, path("m"), false); }),
              HasSubstr("--overwrite"));
  EXPECT_THAT(user_error_of([&] {
                merge_stores({path("a"), path("m")}, path("a"), true);
              }),
              HasSubstr("one of the stores"));
  merge_stores({path("b"), path("a")}, path("m"), true);
  EXPECT_EQ(content("m.bin"), content("b.bin") + content("a.bin"));
  write_megatron(path("c"), TokenType::U16, {{1}});
  EXPECT_THAT(user_error_of([&] {
                merge_stores({path("a"), path("c")}, path("x"), false);
              }),
              AllOf(HasSubstr("int32"), HasSubstr("uint16")));
}

TEST_F(TokenWriterTest, MergesMasksAndDescriptions) {
  write_megatron(path("a"), TokenType::U16, {{1, 2}});
  write_megatron(path("b"), TokenType::U16, {{3}});
  directory_.write("b.mask", std::string(1, '\0'));
  StoreInfo info;
  info.tokenizer = "t";
  info.vocab_size = 10;
  info.bytes = 100;
  info.shards = {{.name = "a", .bin = "", .idx = "", .mask = ""}};
  write_store_info(path("a"), info);
  write_store_info(path("b"), info);
  merge_stores({path("a"), path("b")}, path("m"), false);
  EXPECT_EQ(content("m.mask"), std::string("\1\1\0", 3));
  const auto merged = read_store_info(path("m"));
  ASSERT_TRUE(merged);
  EXPECT_EQ(merged->bytes, 200);
  EXPECT_EQ(merged->tokens, 3);
  EXPECT_THAT(check_shard(TokenShard::open(path("m")), 4, &*merged), IsEmpty());
  info.tokenizer = "other";
  write_store_info(path("b"), info);
  EXPECT_THAT(user_error_of([&] {
                merge_stores({path("a"), path("b")}, path("n"), false);
              }),
              HasSubstr("another tokenizer"));
  std::filesystem::create_directory(path("both"));
  for (const char* name : {"a.bin", "a.idx", "a.json", "b.bin", "b.idx", "b.json"})
    std::filesystem::copy(path(name), path("both"));
  EXPECT_THAT(user_error_of([&] { merge_stores({path("both")}, path("n"), false); }),
              HasSubstr("another tokenizer"))
      << "a directory may hold several stores";
}

TEST_F(TokenWriterTest, MergesSomeShardsOfAStore) {
  StoreInfo info;
  info.tokenizer = "t";
  info.bytes = 100;
  for (const char* name : {"s-00000", "s-00001"}) {
    write_megatron(path(name), TokenType::U16, {{1, 2}});
    info.shards.push_back({.name = name, .bin = "", .idx = "", .mask = ""});
  }
  write_store_info(path("s"), info);
  merge_stores({path("s")}, path("all"), false);
  EXPECT_EQ(read_store_info(path("all"))->bytes, 100);
  merge_stores({path("s-00001")}, path("part"), false);
  EXPECT_EQ(read_store_info(path("part"))->tokenizer, "t");
  EXPECT_EQ(read_store_info(path("part"))->bytes, 0) << "unknown";
}

// Stores named like shards keep their own PREFIX.json.
TEST_F(TokenWriterTest, NamesLikeThoseOfShards) {
  for (const char* name : {"s-00000", "s-00001"}) {
    write_megatron(path(name), TokenType::U16, {{1, 2}});
    StoreInfo info;
    info.tokenizer = name;
    write_store_info(path(name), info);
  }
  const auto infos = read_store_infos(open_token_store(path("s-*")));
  ASSERT_EQ(infos.size(), 2u);
  EXPECT_EQ(infos[0]->tokenizer, "s-00000");
  EXPECT_EQ(infos[1]->tokenizer, "s-00001");
}

// ---- verify

TEST_F(TokenWriterTest, FindsWhatIsWrong) {
  const auto check = [&](std::optional<std::int64_t> vocab_size) {
    const auto info = read_store_info(path("a"));
    return check_shard(TokenShard::open(path("a")), vocab_size, info ? &*info : nullptr);
  };
  write_megatron(path("a"), TokenType::U16, {{1, 2}, {3, 9, 4}, {5}});
  EXPECT_THAT(check(10), IsEmpty());
  EXPECT_THAT(check(std::nullopt), IsEmpty());
  EXPECT_THAT(check(9), ElementsAre(AllOf(HasSubstr("document 1, token 1 (3 of the shard)"),
                                          HasSubstr("id 9"))));

  const std::string index = content("a.idx");
  const auto damage = [&](std::size_t at, char value) {
    std::string bytes = index;
    bytes[at] = value;
    directory_.write("a.idx", bytes);
  };
  const std::size_t lengths = 34, pointers = lengths + 12, documents = pointers + 24;
  damage(lengths + 4, 2);
  EXPECT_THAT(check(10), ElementsAre(HasSubstr("sequence 2 starts at token 5")));
  damage(pointers + 8, 6);
  EXPECT_THAT(check(10), ElementsAre(HasSubstr("sequence 1 starts at token 3")));
  damage(pointers + 8, 5);
  EXPECT_THAT(check(10), ElementsAre(HasSubstr("not a token")));
  damage(documents + 8, 3);
  EXPECT_THAT(check(10),
              ElementsAre(HasSubstr("document 2 starts at sequence 2, before document 1")));
  damage(documents + 8, 77);
  EXPECT_THAT(check(10), ElementsAre(HasSubstr("sequence 77")));
  directory_.write("a.idx", index);

  StoreInfo info;
  info.shards = {{"a", hex64(hash64(content("a.bin"))), hex64(hash64(index)), ""}};
  write_store_info(path("a"), info);
  EXPECT_THAT(check(10), IsEmpty());
  std::string tokens = content("a.bin");
  tokens[0] = 2;
  directory_.write("a.bin", tokens);
  EXPECT_THAT(check(10), ElementsAre(AllOf(HasSubstr("a.bin"), HasSubstr("checksum"))));
}

TEST_F(TokenWriterTest, FindsNegativeIds) {
  write_megatron(path("a"), TokenType::I32, {{1, -1}});
  EXPECT_THAT(check_shard(TokenShard::open(path("a")), 10, nullptr),
              ElementsAre(HasSubstr("id -1")));
  EXPECT_THAT(user_error_of([&] { merge_stores({path("a")}, path("m"), false); }),
              HasSubstr("negative"));
  EXPECT_FALSE(std::filesystem::exists(path("m.partial.bin")));
}

// ---- lengths

TEST_F(TokenWriterTest, SummarizesLengths) {
  std::mt19937 random(2);
  for (const std::size_t count : {1u, 2u, 3u, 100u, 401u}) {
    std::vector<Ids> documents(count);
    std::vector<std::int64_t> lengths;
    for (Ids& document : documents) {
      document.resize(std::size_t{1} << random() % 14);
      document.resize(random() % (document.size() + 1));
      lengths.push_back(static_cast<std::int64_t>(document.size()));
    }
    write_megatron(path("l"), TokenType::U8, documents);
    std::vector<TokenShard> shards;
    shards.push_back(TokenShard::open(path("l")));
    const LengthSummary summary = summarize_lengths(shards);
    std::sort(lengths.begin(), lengths.end());
    EXPECT_EQ(summary.shortest, lengths.front());
    EXPECT_EQ(summary.longest, lengths.back());
    EXPECT_EQ(summary.median, lengths[lengths.size() / 2]);
    EXPECT_EQ(summary.by_log2[0], std::count(lengths.begin(), lengths.end(), 0));
    EXPECT_EQ(summary.by_log2[3], std::count_if(lengths.begin(), lengths.end(),
                                                [](auto n) { return n >= 4 && n < 8; }));
  }
}

}  // namespace
}  // namespace kintsugi
