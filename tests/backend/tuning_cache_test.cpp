#include "backend/tuning_cache.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/file.h"

namespace kintsugi {
namespace {

class TuningCacheTest : public ::testing::Test {
 protected:
  TuningCacheTest() {
    directory_ = std::filesystem::path(::testing::TempDir()) /
                 ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(directory_);
  }
  ~TuningCacheTest() override { std::filesystem::remove_all(directory_); }
  std::filesystem::path path() const { return directory_ / "deeper" / "cache.txt"; }

  std::filesystem::path directory_;
};

TEST_F(TuningCacheTest, RemembersAcrossProcesses) {
  {
    TuningCache cache(path(), "gpu 1");
    EXPECT_FALSE(cache.find("64 64 64"));
    cache.store("64 64 64", "a b");
    cache.store("64 64 64", "c d");
  }
  EXPECT_EQ(TuningCache(path(), "gpu 1").find("64 64 64"), "c d");
  EXPECT_FALSE(TuningCache(path(), "gpu 2").find("64 64 64"));
}

TEST_F(TuningCacheTest, WritersShareAFile) {
  TuningCache one(path(), "gpu 1"), other(path(), "gpu 2"), same(path(), "gpu 1");
  one.store("k", "1");
  other.store("k", "2");
  same.store("l", "3");
  EXPECT_EQ(read_text_file(path()), "gpu 1\tk\t1\ngpu 1\tl\t3\ngpu 2\tk\t2\n");
}

TEST_F(TuningCacheTest, DamageIsAnEmptyCache) {
  std::filesystem::create_directories(path().parent_path());
  std::ofstream(path()) << "nothing\n\tone tab\ngpu\tk\t\ngpu\tgood\tvalue\ngpu\tcut";
  const TuningCache cache(path(), "gpu");
  EXPECT_FALSE(cache.find("k"));
  EXPECT_FALSE(cache.find("cut"));
  EXPECT_EQ(cache.find("good"), "value");
}

TEST_F(TuningCacheTest, LivesOnInMemoryWhereItCannotWrite) {
  TuningCache cache("/dev/null/cache.txt", "gpu"), nowhere("", "gpu");
  for (TuningCache* c : {&cache, &nowhere}) {
    c->store("k", "v");
    EXPECT_EQ(c->find("k"), "v");
  }
}

}  // namespace
}  // namespace kintsugi
