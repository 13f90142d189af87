#include "data/stores/content_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/hash.h"
#include "model/model_test_util.h"
#include "support/counting_store.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// Uses a text of 1 MB; change_the_middle() changes one letter in its middle.
class ContentRecordTest : public testing::Test {
 protected:
  void change_the_middle(const fs::path& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(fs::file_size(path) / 2));
    file.put('#');
  }
  // Changes the modification time but not the content.
  void touch(const fs::path& path) {
    fs::last_write_time(path, fs::last_write_time(path) + std::chrono::hours(1));
  }
  ContentRecord record(const fs::path& path, const ContentLimits& limits = {}) {
    const auto shards = open_token_store(path.string());
    return record_content({shards}, limits).record;
  }
  ContentRecord check(const fs::path& path, const ContentRecord& before,
                      const ContentLimits& limits = {}) {
    const auto shards = open_token_store(path.string());
    return compare_content({shards}, before, limits).record;
  }
  std::string error(const fs::path& path, const ContentRecord& before,
                    const ContentLimits& limits = {}) {
    return user_error_of([&] { check(path, before, limits); });
  }

  TemporaryDirectory directory_;
  fs::path text_ = directory_.write("a.txt", std::string(1 << 20, 'x'));
};

TEST_F(ContentRecordTest, AChangeInTheMiddleIsFound) {
  const ContentRecord before = record(text_);
  ASSERT_EQ(before.size(), 1u);
  EXPECT_NO_THROW(check(text_, before));
  change_the_middle(text_);
  EXPECT_THAT(error(text_, before),
              AllOf(HasSubstr("a.txt is not the file that the run was started on"),
                    HasSubstr("checksum"), HasSubstr("another run.dir")));
}

TEST_F(ContentRecordTest, FilesThatWereTouchedOrCopiedAreTheSame) {
  ContentRecord before = record(text_);
  touch(text_);
  const ContentRecord touched = check(text_, before);
  EXPECT_NE(touched[0].modified_ns, before[0].modified_ns) << "the record is updated";
  EXPECT_EQ(touched[0].hash, before[0].hash);
  const fs::path copy = directory_ / "copy.txt";
  fs::copy_file(text_, copy);
  EXPECT_EQ(check(copy, before)[0].path, copy);
}

// A store of 300 documents, with a description of its files.
class DescribedStoreTest : public ContentRecordTest {
 protected:
  std::string hash_of(const std::string& path) { return hex64(hash64(read_text_file(path))); }

  std::string prefix_ =
      write_store(directory_, "store",
                  std::vector<std::vector<std::int32_t>>(300, std::vector<std::int32_t>(500, 7)));
  void SetUp() override {
    StoreInfo info;
    info.shards = {{"store", hash_of(prefix_ + ".bin"), hash_of(prefix_ + ".idx"), ""}};
    write_store_info(prefix_, info);
  }
};

TEST_F(DescribedStoreTest, ItsContentIsReadAtTheFirstStart) {
  const ContentRecord before = record(prefix_);
  ASSERT_EQ(before.size(), 2u);
  EXPECT_TRUE(before[0].read);
  EXPECT_EQ(before[0].hash, hash_of(prefix_ + ".bin"));
  EXPECT_EQ(before[1].hash, hash_of(prefix_ + ".idx"));
  touch(prefix_ + ".bin");
  EXPECT_NO_THROW(check(prefix_, before));
  fs::remove(prefix_ + ".json");
  EXPECT_NO_THROW(check(prefix_, before)) << "the record is enough";
  change_the_middle(prefix_ + ".bin");
  EXPECT_THAT(error(prefix_, before), HasSubstr("store.bin is not the file"));
}

TEST_F(DescribedStoreTest, AnotherContentThanDescribedIsRefused) {
  change_the_middle(prefix_ + ".bin");
  EXPECT_THAT(user_error_of([&] { record(prefix_); }),
              AllOf(HasSubstr("store.bin has another content"), HasSubstr("kintsugi data verify")));
}

// Earlier versions recorded what PREFIX.json says.
TEST_F(DescribedStoreTest, ARecordOfAnEarlierVersionIsCompared) {
  ContentRecord before = record(prefix_);
  change_the_middle(prefix_ + ".bin");
  const auto shards = open_token_store(prefix_);
  const ContentRecord now = record_content({shards}, {.whole_bytes = 0}).record;  // its times
  EXPECT_FALSE(now[0].read);
  EXPECT_EQ(now[0].hash, before[0].hash);
  EXPECT_THAT(error(prefix_, now), HasSubstr("store.bin has another content"));
}

// ---- files that are too large to be read before the first step

class LargeContentTest : public DescribedStoreTest {
 protected:
  const ContentLimits none_ = {.whole_bytes = 0, .block_bytes = 16, .blocks = 2};

  // Reads all files in the background. Returns the last record that was saved.
  ContentRecord read_all(ComparedContent content) {
    ContentRecord saved;
    ContentCheck check(std::move(content), [&](const ContentRecord& now) { saved = now; });
    check.wait();
    check.rethrow();
    EXPECT_EQ(check.unread_bytes(), 0u);
    return saved;
  }
  ComparedContent begin() {
    const auto shards = open_token_store(prefix_);
    return record_content({shards}, none_);
  }
  ComparedContent resume(const ContentRecord& before) {
    const auto shards = open_token_store(prefix_);
    return compare_content({shards}, before, none_);
  }
};

TEST_F(LargeContentTest, IsReadInTheBackground) {
  const ComparedContent start = begin();
  ASSERT_EQ(start.unread.size(), 2u);
  const ContentRecord all = read_all(start);
  EXPECT_TRUE(all[0].read && all[1].read);
  EXPECT_EQ(all[0].hash, hash_of(prefix_ + ".bin"));
  EXPECT_TRUE(resume(all).unread.empty()) << "not a second time";
}

TEST_F(LargeContentTest, AnotherContentIsFoundWhileTheRunTrains) {
  change_the_middle(prefix_ + ".bin");
  EXPECT_THAT(user_error_of([&] { read_all(begin()); }),
              HasSubstr("store.bin has another content"));
}

// A start whose check was not finished leaves files unread; the next one compares them.
TEST_F(LargeContentTest, AnUnfinishedCheckContinuesAtTheNextStart) {
  const ContentRecord stopped = begin().record;
  const ComparedContent second = resume(stopped);
  EXPECT_EQ(second.unread.size(), 2u);
  const ContentRecord all = read_all(second);
  touch(prefix_ + ".bin");
  const ComparedContent touched = resume(all);
  ASSERT_EQ(touched.unread.size(), 1u);
  EXPECT_EQ(touched.record[0].modified_ns, all[0].modified_ns)
      << "a file that was not compared yet is compared again";
  EXPECT_TRUE(resume(read_all(touched)).unread.empty());
  change_the_middle(prefix_ + ".bin");
  EXPECT_THAT(user_error_of([&] { read_all(resume(touched.record)); }),
              HasSubstr("store.bin is not the file that the run was started on"));
}

// Above the limit only blocks are compared: 4 blocks of 1 KiB, the third starts at 2/3.
TEST_F(ContentRecordTest, WhereReadingAllIsTooMuchBlocksAreCompared) {
  const ContentLimits limits = {.whole_bytes = 1000, .block_bytes = 1024, .blocks = 4};
  const ContentRecord before = record(text_, limits);
  EXPECT_EQ(before[0].hash, "");
  EXPECT_NE(before[0].blocks, "");
  touch(text_);
  EXPECT_NO_THROW(check(text_, before, limits));
  std::fstream file(text_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(((1 << 20) - 1024) / 3 * 2 + 100);
  file.put('#');
  file.close();
  EXPECT_THAT(error(text_, before, limits), HasSubstr("samples of its content"));
  fs::resize_file(text_, (1 << 20) - 1);
  EXPECT_THAT(error(text_, before, limits), HasSubstr("it has 1048575 bytes, it had 1048576"));
}

TEST_F(ContentRecordTest, TheRecordIsReadBack) {
  const ContentRecord before = record(text_);
  const fs::path path = directory_ / "data.json";
  EXPECT_FALSE(read_content(path, {"abc"}));
  write_content(path, "abc", before);
  EXPECT_FALSE(read_content(path, {"of other data"}));
  const auto after = read_content(path, {"abc"});
  ASSERT_TRUE(after);
  EXPECT_NO_THROW(check(text_, *after));
  EXPECT_EQ(after->at(0).changed_ns, before[0].changed_ns);
  EXPECT_EQ(after->at(0).inode, before[0].inode);
  directory_.write("data.json", "{\"fingerprint\": \"abc\", \"files\": [7]}");
  EXPECT_THAT(user_error_of([&] { read_content(path, {"abc"}); }), HasSubstr("data.json"));
}

}  // namespace
}  // namespace kintsugi
