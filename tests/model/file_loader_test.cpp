#include "model/files/file_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <span>

#include "core/hash.h"
#include "support/errors.h"
#include "support/late_backend.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;

void say_damaged(const std::filesystem::path& path) { user_error("{} is damaged", path.string()); }

// Files of several chunks, and a device that copies as late as possible.
class FileLoaderTest : public testing::Test {
 protected:
  FileLoaderTest() {
    std::mt19937 random(4);
    for (std::size_t i = 0; i < contents_.size(); ++i) {
      std::string& content = contents_[i];
      content.resize((std::size_t{19 + 8 * i} << 20) + 13);
      for (std::size_t at = 0; at + 4 <= content.size(); at += 4) {
        // Numbers in the range of every type; some types round them.
        const float value = static_cast<float>(random() % 100'000) * 0x1p-10f;
        std::memcpy(&content[at + i], &value, std::min<std::size_t>(4, content.size() - at - i));
      }
      paths_[i] = directory_.write("file" + std::to_string(i), content);
    }
  }

  struct Load {
    std::size_t file;
    std::uint64_t offset;
    DType stored;
    Tensor to;
  };
  Load announce(FileLoader& loader, std::size_t file, std::uint64_t offset, DType stored,
                DType dtype, std::int64_t elements, Side side) {
    const Load load{file, offset, stored,
                    arena_.allocate(Region::Weights, "test", dtype, {elements}, side)};
    loader.load(loader.open(paths_[file]), offset, stored, load.to);
    return load;
  }
  void expect_loaded(const Load& load) {
    const char* from = contents_[load.file].data() + load.offset;
    visit_float(load.stored, [&]<class S>() {
      visit_float(load.to.dtype(), [&]<class D>() {
        for (std::int64_t i = 0; i < load.to.elements(); ++i) {
          S stored;
          std::memcpy(&stored, from + static_cast<std::size_t>(i) * sizeof(S), sizeof(S));
          const D expected = static_cast<D>(static_cast<Accumulator<D>>(
              static_cast<double>(static_cast<Accumulator<S>>(stored))));
          ASSERT_EQ(std::memcmp(&expected, load.to.as<D>() + i, sizeof(D)), 0) << i;
        }
      });
    });
  }
  std::string hash_of(std::size_t file, std::uint64_t offset, std::uint64_t bytes) const {
    return hex64(hash64(contents_[file].data() + offset, bytes));
  }

  TemporaryDirectory directory_;
  std::array<std::string, 2> contents_, paths_;
  LateBackend backend_{2};
  Arena arena_{backend_};
};

TEST_F(FileLoaderTest, LoadsAnyRangeIntoAnyTensor) {
  FileLoader loader(backend_);
  std::vector<Load> loads;
  // The second file's numbers start at an odd offset, so that elements cross chunk boundaries.
  loads.push_back(
      announce(loader, 1, 1, DType::F32, DType::F32, std::int64_t{6} << 20, Side::Device));
  loads.push_back(announce(loader, 0, 8, DType::F32, DType::F32, 3'000'000, Side::Device));
  loads.push_back(announce(loader, 0, 8, DType::F32, DType::F32, 3'000'000, Side::Host));
  loads.push_back(announce(loader, 0, 8, DType::F32, DType::BF16, 3'000'000, Side::Device));
  loads.push_back(announce(loader, 0, 4008, DType::F32, DType::F64, 2'500'000, Side::Host));
  loads.push_back(announce(loader, 0, 15'000'000, DType::F32, DType::F16, 5, Side::Device));
  loads.push_back(announce(loader, 0, 15'000'040, DType::F32, DType::F64, 1000, Side::Device));
  std::int64_t last = 0, total = 0;
  loader.run([&](std::int64_t done, std::int64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  });
  // Each byte is read once: 24 MiB of the second file, and two ranges of the first one. The 20
  // bytes between its last two loads are read too, the millions before them are not.
  EXPECT_EQ(total, (std::int64_t{24} << 20) + 12'000'000 + 20 + 20 + 4000);
  EXPECT_EQ(last, total);
  for (const Load& load : loads) expect_loaded(load);
  EXPECT_EQ(backend_.pending(), 0u);
}

TEST_F(FileLoaderTest, ChecksHashesOfWhatIsLoadedAndOfTheRest) {
  const std::uint64_t size = contents_[0].size(), third = size / 3;
  FileLoader loader(backend_);
  const auto expect = [&](std::uint64_t begin, std::uint64_t end) {
    loader.verify(loader.open(paths_[0]), begin, end - begin, hash_of(0, begin, end - begin),
                  say_damaged);
  };
  const auto expect_all = [&] {
    expect(0, third);
    expect(third, third);  // nothing
    expect(third, 2 * third);
    expect(2 * third, size);
  };
  expect_all();
  const Load load = announce(loader, 0, 4, DType::F32, DType::F32, 2'000'000, Side::Device);
  loader.run();
  expect_loaded(load);
  for (const std::uint64_t at : {std::uint64_t{0}, third - 1, third, 2 * third + 5, size - 1}) {
    contents_[0][at] = static_cast<char>(contents_[0][at] ^ 4);
    directory_.write("file0", contents_[0]);
    contents_[0][at] = static_cast<char>(contents_[0][at] ^ 4);
    expect_all();
    announce(loader, 0, 4, DType::F32, DType::F32, 2'000'000, Side::Device);
    EXPECT_THAT(user_error_of([&] { loader.run(); }), HasSubstr("file0 is damaged")) << at;
    EXPECT_EQ(backend_.pending(), 0u) << at;
    loader = FileLoader(backend_);
  }
  expect_all();  // the last damage is still in the file
  announce(loader, 0, 4, DType::F32, DType::F32, 2'000'000, Side::Device);
  loader.forget_loads();
  EXPECT_THAT(user_error_of([&] { loader.run(); }), HasSubstr("file0 is damaged"));
  EXPECT_THAT(user_error_of([&] {
                FileLoader empty(backend_);
                empty.verify(empty.open(paths_[0]), 0, 0, hash_of(0, 0, 1), say_damaged);
                empty.run();
              }),
              HasSubstr("is damaged"));
}

// A shard of columns of a matrix takes one copy for many rows.
TEST_F(FileLoaderTest, JoinsRangesThatAreAdjacentOnTheDevice) {
  constexpr std::int64_t kRows = 4000, kWidth = 1000, kShard = 250;
  FileLoader loader(backend_);
  const int file = loader.open(paths_[0]);
  const auto load_columns = [&](const Tensor& to, std::int64_t first) {
    for (std::int64_t row = 0; row < kRows; ++row)
      loader.load(file, static_cast<std::uint64_t>(row * kWidth + first) * 4, DType::F32,
                  to.rows(row * kShard, kShard));
  };
  const auto expect_columns = [&](const Tensor& to, std::int64_t first) {
    for (std::int64_t row = 0; row < kRows; ++row)
      ASSERT_EQ(std::memcmp(to.as<float>() + row * kShard,
                            contents_[0].data() + (row * kWidth + first) * 4, kShard * 4),
                0)
          << row;
  };
  const Tensor shard = arena_.allocate(Region::Weights, "test", DType::F32, {kRows * kShard});
  load_columns(shard, 250);
  loader.run();
  expect_columns(shard, 250);
  EXPECT_LT(backend_.transfers(), 10);
  // Two tensors that load the same bytes.
  const Tensor other = arena_.allocate(Region::Weights, "test", DType::F32, {kRows * kShard});
  const Tensor host =
      arena_.allocate(Region::Weights, "test", DType::F32, {kRows * kShard}, Side::Host);
  load_columns(shard, 0);
  load_columns(other, 100);
  load_columns(host, 200);
  loader.run();
  expect_columns(shard, 0);
  expect_columns(other, 100);
  expect_columns(host, 200);
}

TEST_F(FileLoaderTest, AFileThatEndsTooEarlyIsAFailure) {
  FileLoader loader(backend_);
  announce(loader, 0, 0, DType::F32, DType::F32, 4'000'000, Side::Device);
  std::filesystem::resize_file(paths_[0], 9'000'000);
  try {
    loader.run();
    FAIL() << "nothing was thrown";
  } catch (const Failure& error) {
    EXPECT_THAT(error.what(), HasSubstr("file0 was truncated while it was read"));
  }
  EXPECT_EQ(backend_.pending(), 0u);
}

}  // namespace
}  // namespace kintsugi
