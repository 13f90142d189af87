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
    return record_content({shards}, limits);
  }
  ContentRecord check(const fs::path& path, const ContentRecord& before,
                      const ContentLimits& limits = {}) {
    const auto shards = open_token_store(path.string());
    return check_content({shards}, before, limits);
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

// The checksums in PREFIX.json are trusted, and compared if the times have changed.
TEST_F(ContentRecordTest, ChecksumsOfAStoreAreNotTakenAgain) {
  std::vector<std::vector<std::int32_t>> documents(300, std::vector<std::int32_t>(500, 7));
  const std::string prefix = write_store(directory_, "store", documents);
  const auto hash_of = [&](const char* ending) {
    return hex64(hash64(read_text_file(prefix + ending)));
  };
  StoreInfo info;
  info.shards = {{"store", hash_of(".bin"), hash_of(".idx"), ""}};
  write_store_info(prefix, info);
  const ContentRecord before = record(prefix);
  ASSERT_EQ(before.size(), 2u);
  EXPECT_EQ(before[0].hash, info.shards[0].bin);
  EXPECT_EQ(before[1].hash, info.shards[0].idx);
  touch(prefix + ".bin");
  EXPECT_NO_THROW(check(prefix, before));
  fs::remove(prefix + ".json");
  EXPECT_NO_THROW(check(prefix, before)) << "the record is enough";
  change_the_middle(prefix + ".bin");
  EXPECT_THAT(error(prefix, before), HasSubstr("store.bin is not the file"));
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
  EXPECT_FALSE(read_content(path, "abc"));
  write_content(path, "abc", before);
  EXPECT_FALSE(read_content(path, "of other data"));
  const auto after = read_content(path, "abc");
  ASSERT_TRUE(after);
  EXPECT_NO_THROW(check(text_, *after));
  EXPECT_EQ(after->at(0).changed_ns, before[0].changed_ns);
  EXPECT_EQ(after->at(0).inode, before[0].inode);
  directory_.write("data.json", "{\"fingerprint\": \"abc\", \"files\": [7]}");
  EXPECT_THAT(user_error_of([&] { read_content(path, "abc"); }), HasSubstr("data.json"));
}

}  // namespace
}  // namespace kintsugi
