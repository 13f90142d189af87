#include "data/stores/token_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>

#include "support/errors.h"
#include "support/temporary_directory.h"
#include "support/token_files.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::int32_t> tokens_of(const TokenShard& shard) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(shard.tokens()));
  shard.read(0, ids);
  return ids;
}

// Written by hand from the format description: documents [1 2 3 0] and [4 0] in uint16.
const std::string kGoldenIndex = from_hex(
    "4d4d49444944580000 0100000000000000 08 0200000000000000 0300000000000000"
    "04000000 02000000  0000000000000000 0800000000000000"
    "0000000000000000 0100000000000000 0200000000000000");
const std::string kGoldenTokens = from_hex("0100 0200 0300 0000 0400 0000");

std::vector<int> mask_of(const TokenShard& shard) {
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(shard.tokens()));
  shard.read_mask(0, mask);
  return {mask.begin(), mask.end()};
}

class TokenStoreTest : public testing::Test {
 protected:
  void write_golden(const std::string& prefix = "a") {
    directory_.write(prefix + ".idx", kGoldenIndex);
    directory_.write(prefix + ".bin", kGoldenTokens);
  }
  std::string path(const std::string& name) { return (directory_ / name).string(); }
  // The error for the golden file with these changes.
  std::string complaint(
      const std::function<void(std::string& index, std::string& tokens)>& change) {
    std::string index = kGoldenIndex, tokens = kGoldenTokens;
    change(index, tokens);
    directory_.write("a.idx", index);
    directory_.write("a.bin", tokens);
    return user_error_of([&] { TokenShard::open(directory_ / "a"); });
  }
  TemporaryDirectory directory_;
};

TEST_F(TokenStoreTest, ReadsTheWorkedExample) {
  ASSERT_EQ(kGoldenIndex.size(), 82u);
  write_golden();
  const TokenShard shard = TokenShard::open(directory_ / "a");
  EXPECT_EQ(shard.type(), TokenType::U16);
  EXPECT_EQ(shard.documents(), 2);
  EXPECT_EQ(shard.sequences(), 2);
  EXPECT_EQ(shard.tokens(), 6);
  EXPECT_THAT(tokens_of(shard), ElementsAre(1, 2, 3, 0, 4, 0));
  EXPECT_EQ(shard.document_begin(0), 0);
  EXPECT_EQ(shard.document_begin(1), 4);
  EXPECT_EQ(shard.document_begin(2), 6);
  EXPECT_EQ(shard.sequence_length(1), 2);
  EXPECT_EQ(shard.document_of(3), 0);
  EXPECT_EQ(shard.document_of(4), 1);
  EXPECT_FALSE(shard.has_mask());
  EXPECT_THAT(mask_of(shard), Each(1));
  std::int32_t one = 0;
  shard.read(4, {&one, 1});
  EXPECT_EQ(one, 4);
}

TEST_F(TokenStoreTest, ReadsEveryType) {
  for (const TokenType type : {TokenType::U8, TokenType::U16, TokenType::I32}) {
    const int largest = type == TokenType::U8    ? 255
                        : type == TokenType::U16 ? 65535
                                                 : 2'000'000'000;
    write_megatron(path("t"), type, {{1, largest}, {}, {7}});
    const TokenShard shard = TokenShard::open(directory_ / "t");
    EXPECT_THAT(tokens_of(shard), ElementsAre(1, largest, 7));
    EXPECT_EQ(shard.documents(), 3);
    EXPECT_EQ(shard.document_begin(1), shard.document_begin(2));
    EXPECT_EQ(shard.document_of(1), 0);
    EXPECT_EQ(shard.document_of(2), 2) << "an empty document holds no token";
  }
}

TEST_F(TokenStoreTest, DocumentsOfSeveralSequences) {
  // The first document has two sequences, the second has one: boundaries 0 2 3.
  write_megatron(path("s"), TokenType::U16, {{1, 2}, {3}, {4}}, {0, 2, 3});
  const TokenShard shard = TokenShard::open(directory_ / "s");
  EXPECT_EQ(shard.sequences(), 3);
  EXPECT_EQ(shard.documents(), 2);
  EXPECT_EQ(shard.document_begin(1), 3);
  EXPECT_EQ(shard.document_sequence(1), 2);
  EXPECT_EQ(shard.document_of(2), 0);
}

TEST_F(TokenStoreTest, EmptyStore) {
  write_megatron(path("e"), TokenType::U16, {});
  const TokenShard shard = TokenShard::open(directory_ / "e");
  EXPECT_EQ(shard.tokens(), 0);
  EXPECT_EQ(shard.documents(), 0);
  EXPECT_EQ(shard.document_begin(0), 0);
}

TEST_F(TokenStoreTest, SaysWhatIsWrong) {
  EXPECT_THAT(complaint([](auto& i, auto&) { i.replace(0, 9, std::string("TNTIDX\0\0\1", 9)); }),
              AllOf(HasSubstr("a.idx"), HasSubstr("TNTIDX")));
  EXPECT_THAT(complaint([](auto& i, auto&) { i[0] = 'X'; }), HasSubstr("MMIDIDX"));
  EXPECT_THAT(complaint([](auto& i, auto&) { i.clear(); }), HasSubstr("MMIDIDX"));
  EXPECT_THAT(complaint([](auto& i, auto&) { i.resize(20); }), HasSubstr("header"));
  EXPECT_THAT(complaint([](auto& i, auto&) { i[9] = 2; }), HasSubstr("version 2"));
  EXPECT_THAT(complaint([](auto& i, auto&) { i[17] = 5; }), HasSubstr("int64"));
  EXPECT_THAT(complaint([](auto& i, auto&) { i[17] = 99; }), HasSubstr("99"));
  EXPECT_THAT(complaint([](auto& i, auto&) { i[17] = 4; }), HasSubstr("a.bin"));  // int32
  EXPECT_THAT(complaint([](auto& i, auto&) { i.pop_back(); }), HasSubstr("too few"));
  EXPECT_THAT(complaint([](auto& i, auto&) { i += 'x'; }), HasSubstr("more than its header"));
  EXPECT_THAT(complaint([](auto&, auto& t) { t.resize(10); }), HasSubstr("accounts for 6"));
  EXPECT_THAT(complaint([](auto&, auto& t) { t.resize(11); }), HasSubstr("multiple"));
  EXPECT_THAT(complaint([](auto& i, auto&) { i[42] = 2; }), HasSubstr("first sequence"));
  EXPECT_THAT(complaint([](auto& i, auto&) { i[74] = 1; }), HasSubstr("0 to 1"));
  EXPECT_THAT(complaint([](auto& i, auto&) { i[58] = 1; }), HasSubstr("documents span"));
}

TEST_F(TokenStoreTest, HugeCountsDoNotOverflow) {
  for (const std::size_t count : {18u, 26u})
    for (const std::uint64_t value :
         {~0ull, 1ull << 63, (1ull << 63) - 1, 1ull << 61, 1537228672809129302ull /* 2^64 / 12 */,
          1537228672809129301ull, 0x2000000000000001ull, 0ull})
      EXPECT_NE("", complaint([&](std::string& index, auto&) {
                  std::memcpy(index.data() + count, &value, 8);
                }))
          << count << " " << value;
}

// Damage is an error or is not detected, but all positions are inside the file.
TEST_F(TokenStoreTest, DamagedFilesNeverCrash) {
  std::mt19937 random(7);
  int opened = 0, refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string index = kGoldenIndex, tokens = kGoldenTokens;
    for (unsigned change = random() % 3 + 1; change > 0; --change)
      index[9 + random() % (index.size() - 9)] =
          static_cast<char>(random() % 4 ? random() % 4 : random());
    if (random() % 8 == 0) index.resize(random() % (index.size() + 1));
    if (random() % 8 == 0) tokens.resize(random() % (tokens.size() + 1));
    std::filesystem::remove(directory_ / "a.idx");  // overwriting may sync, which is slow
    std::filesystem::remove(directory_ / "a.bin");
    directory_.write("a.idx", index);
    directory_.write("a.bin", tokens);
    try {
      const TokenShard shard = TokenShard::open(directory_ / "a");
      for (std::int64_t d = 0; d <= shard.documents(); ++d) shard.document_begin(d);
      for (std::int64_t s = 0; s < shard.sequences(); ++s) shard.sequence_length(s);
      for (std::int64_t t = 0; t < shard.tokens(); ++t)
        EXPECT_LT(shard.document_of(t), shard.documents());
      tokens_of(shard);
      shard.fingerprint();
      ++opened;
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(opened, 10);
  EXPECT_GT(refused, 1000);
}

TEST_F(TokenStoreTest, TextIsOneDocument) {
  directory_.write("t.txt", "Hi\xff");
  const TokenShard shard = TokenShard::open_text(directory_ / "t.txt");
  EXPECT_TRUE(shard.is_text());
  EXPECT_EQ(shard.type(), TokenType::U8);
  EXPECT_EQ(shard.documents(), 1);
  EXPECT_EQ(shard.document_begin(1), 3);
  EXPECT_EQ(shard.sequence_length(0), 3);
  EXPECT_EQ(shard.document_of(2), 0);
  EXPECT_THAT(tokens_of(shard), ElementsAre('H', 'i', 255));
}

TEST_F(TokenStoreTest, MaskHasAByteForEachToken) {
  write_golden();
  directory_.write("a.mask", std::string("\0\1\1\1\0\1", 6));
  EXPECT_THAT(mask_of(TokenShard::open(directory_ / "a")), ElementsAre(0, 1, 1, 1, 0, 1));
  directory_.write("a.mask", "12345");
  EXPECT_THAT(user_error_of([&] { TokenShard::open(directory_ / "a"); }),
              AllOf(HasSubstr("a.mask"), HasSubstr("5 bytes"), HasSubstr("6 tokens")));
}

TEST_F(TokenStoreTest, FingerprintTellsContentApart) {
  write_golden("a");
  write_golden("b");
  const auto print = [&](const char* name) {
    return TokenShard::open(directory_ / name).fingerprint();
  };
  EXPECT_EQ(print("a"), print("b"));
  directory_.write("b.bin", from_hex("0100 0200 0300 0000 0500 0000"));
  EXPECT_NE(print("a"), print("b"));
  write_megatron(path("c"), TokenType::U16, {{1, 2, 3}, {0, 4, 0}});
  EXPECT_NE(print("a"), print("c")) << "the same tokens, other documents";
}

std::vector<std::string> names_of(const std::vector<TokenShard>& shards) {
  std::vector<std::string> names;
  for (const TokenShard& shard : shards)
    names.push_back(std::filesystem::path(shard.name()).filename());
  return names;
}

TEST_F(TokenStoreTest, FindsShardsBehindAName) {
  write_golden("fi-2");
  write_golden("fi-1");
  write_golden("en.v1");
  directory_.write("fi-1.json.bak", "x");
  directory_.write("plain.txt", "text");
  EXPECT_THAT(names_of(open_token_store(path("fi-1"))), ElementsAre("fi-1"));
  EXPECT_THAT(names_of(open_token_store(path("fi-1.bin"))), ElementsAre("fi-1"));
  EXPECT_THAT(names_of(open_token_store(path("fi-1.idx"))), ElementsAre("fi-1"));
  EXPECT_THAT(names_of(open_token_store(path("en.v1"))), ElementsAre("en.v1"));
  EXPECT_THAT(names_of(open_token_store(path("fi-*"))), ElementsAre("fi-1", "fi-2"));
  EXPECT_THAT(names_of(open_token_store(path("fi-?"))), ElementsAre("fi-1", "fi-2"));
  EXPECT_THAT(names_of(open_token_store(path("{fi-2,en.v1}"))), ElementsAre("en.v1", "fi-2"));
  EXPECT_THAT(names_of(open_token_store(directory_.path().string())),
              ElementsAre("en.v1", "fi-1", "fi-2"));
  EXPECT_THAT(names_of(open_token_store(path("plain.txt"))), ElementsAre("plain.txt"));
  EXPECT_THAT(names_of(open_token_store(path("*.txt"))), ElementsAre("plain.txt"));
}

TEST_F(TokenStoreTest, UnfinishedStoresInADirectory) {
  write_golden("a");
  write_golden("b.partial");
  EXPECT_THAT(names_of(open_token_store(directory_.path().string())), ElementsAre("a"));
  EXPECT_THAT(names_of(open_token_store(path("*"))), ElementsAre("a"));
  directory_.write("b.progress.json", "{}");
  EXPECT_THAT(user_error_of([&] { open_token_store(directory_.path().string()); }),
              HasSubstr("interrupted"));
}

TEST_F(TokenStoreTest, NumberedShards) {
  write_golden("c-00000");
  write_golden("c-00001");
  EXPECT_THAT(names_of(open_token_store(path("c"))), ElementsAre("c-00000", "c-00001"));
  StoreInfo info;
  info.shards = {{"c-00000", "", "", ""}};
  write_store_info(path("c"), info);
  EXPECT_THAT(user_error_of([&] { open_token_store(path("c")); }), HasSubstr("names 1 shards, 2"));
  std::filesystem::remove(path("c.json"));
  write_golden("c");
  EXPECT_THAT(user_error_of([&] { open_token_store(path("c")); }), HasSubstr("c-00000"));
}

TEST_F(TokenStoreTest, NamesWithoutAStore) {
  write_golden("a");
  const auto complaint_about = [&](const std::string& name) {
    return user_error_of([&] { open_token_store(path(name)); });
  };
  EXPECT_THAT(complaint_about("nosuch"), HasSubstr("nosuch.idx"));
  EXPECT_THAT(complaint_about("nosuch*"), HasSubstr("nothing matches"));
  std::filesystem::create_directory(directory_ / "empty");
  EXPECT_THAT(complaint_about("empty"), HasSubstr("no token store"));
  directory_.write("half.bin", "xx");
  EXPECT_THAT(complaint_about("half"), HasSubstr("half.idx is missing"));
  directory_.write("lines.jsonl", "{}");
  EXPECT_THAT(complaint_about("lines.jsonl"), HasSubstr("data tokenize"));
  directory_.write("packed", "\x1f\x8b\x08");
  EXPECT_THAT(complaint_about("packed"), HasSubstr("data tokenize"));
  directory_.write("olmo.npy", "1234");
  EXPECT_THAT(complaint_about("olmo.npy"), HasSubstr("another program"));
  directory_.write("old.txt.bz2", "BZh91AY&SY");
  EXPECT_THAT(complaint_about("old.txt.bz2"), HasSubstr("bzip2"));
  directory_.write("a.progress.json", "{}");
  EXPECT_THAT(complaint_about("a"), HasSubstr("interrupted"));
  std::filesystem::remove(path("a.progress.json"));
  write_megatron(path("b"), TokenType::I32, {{1}});
  EXPECT_THAT(complaint_about("[ab]"), AllOf(HasSubstr("uint16"), HasSubstr("int32")));
}

TEST(TokenType, ChosenAsMegatronDoesAboveBytes) {
  EXPECT_EQ(token_type_for(256), TokenType::U8);
  EXPECT_EQ(token_type_for(257), TokenType::U16);
  EXPECT_EQ(token_type_for(50'257), TokenType::U16);
  EXPECT_EQ(token_type_for(65'499), TokenType::U16);
  EXPECT_EQ(token_type_for(65'500), TokenType::I32);
  EXPECT_EQ(token_type_for(128'256), TokenType::I32);
}

TEST_F(TokenStoreTest, StoreInfoRoundTrip) {
  StoreInfo info;
  info.tokenizer = "abc";
  info.tokenizer_description = "a test";
  info.vocab_size = 300;
  info.end_of_document = 0;
  info.bytes = 5'000'000'000;
  info.tokens = 6;
  info.documents = 2;
  info.shards = {{"a-00000", "1", "2", "3"}, {"a-00001", "4", "5", ""}};
  info.made_from = "{\"inputs\":[\"x\"]}";
  write_store_info(directory_ / "a", info);
  for (const char* name : {"a", "a-00001"}) {
    const auto read = read_store_info(directory_ / name);
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->tokenizer, "abc");
    EXPECT_EQ(read->vocab_size, 300);
    EXPECT_EQ(read->end_of_document, 0);
    EXPECT_EQ(read->bytes, 5'000'000'000);
    EXPECT_EQ(read->shards.size(), 2u);
    EXPECT_EQ(read->shards[0].mask, "3");
    EXPECT_EQ(read->made_from, info.made_from);
  }
  EXPECT_FALSE(read_store_info(directory_ / "b").has_value());
  for (const char* bad : {"", "[]", "{\"kintsugi_store\": 1}", "{\"kintsugi_store\": 2}", "\xff"}) {
    directory_.write("a.json", bad);
    EXPECT_THAT(user_error_of([&] { read_store_info(directory_ / "a"); }), HasSubstr("a.json"));
  }
}

}  // namespace
}  // namespace kintsugi
