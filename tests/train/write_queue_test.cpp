#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "support/directory_contents.h"
#include "support/late_backend.h"
#include "support/temporary_directory.h"
#include "train/checkpoint/files.h"

namespace kintsugi {
namespace {

// Writes tensors on the device, tensors in host memory and memory of the caller to one file.
TEST(WriteQueue, WritesAndHashesInOrder) {
  for (const std::size_t largest : {std::size_t{10}, std::size_t{1} << 30}) {
    const TemporaryDirectory directory;
    const std::string path = directory.write("file", "header.");
    LateBackend backend(1);
    Arena arena(backend);
    std::mt19937 random(8);
    std::string expected = "header.";
    OffsetWriter file(path);
    StreamHash hash;
    hash.update(expected.data(), expected.size());
    {
      WriteQueue queue(&backend, largest);
      // More than fits into the queue's buffers.
      for (const std::int64_t bytes : {3, 90'000'000, 0, 1, 8 << 20, 5, 60'000'000})
        for (const Side side : {Side::Device, Side::Host}) {
          std::string content(static_cast<std::size_t>(bytes), '\0');
          for (std::size_t i = 0; i + 4 <= content.size(); i += 4) {
            const auto word = static_cast<std::uint32_t>(random());
            std::memcpy(&content[i], &word, 4);
          }
          const Tensor x = arena.allocate(Region::Weights, "test", DType::U8, {bytes}, side);
          backend.upload(x, content.data());
          queue.put(file, expected.size(), hash, x);
          expected += content;
          std::string own = "mine " + std::to_string(bytes);
          queue.put_copy(file, expected.size(), hash, own.data(), own.size());
          expected += own;
          own.assign(own.size(), '?');
        }
      queue.finish();
      EXPECT_EQ(backend.pending(), 0u);
    }
    file.close();
    EXPECT_TRUE(directory_contents(directory.path()).at("file") == expected);
    EXPECT_EQ(hash.digest(), hash64(expected));
  }
}

TEST(WriteQueue, SaysWhatCouldNotBeWritten) {
  LateBackend backend(1);
  Arena arena(backend);
  const Tensor x = arena.allocate(Region::Weights, "test", DType::U8, {200'000'000});
  OffsetWriter full("/dev/full");
  StreamHash hash;
  const auto message = [&](std::int64_t bytes) -> std::string {
    WriteQueue queue(&backend, 1 << 30);
    try {
      queue.put(full, 0, hash, x.rows(0, bytes));
      queue.finish();
    } catch (const Failure& error) {
      return error.what();
    }
    return "";
  };
  for (const std::int64_t bytes : {10, 200'000'000})
    EXPECT_THAT(message(bytes), testing::AllOf(testing::HasSubstr("/dev/full"),
                                               testing::HasSubstr("No space left")));
  EXPECT_EQ(backend.pending(), 0u);
}

}  // namespace
}  // namespace kintsugi
