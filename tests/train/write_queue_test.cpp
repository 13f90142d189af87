#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "support/directory_contents.h"
#include "support/late_backend.h"
#include "support/temporary_directory.h"
#include "train/checkpoint/files.h"

namespace kintsugi {
namespace {

// Random bytes that repeat only after a prime number of them, from a random one on.
std::string random_content(std::size_t bytes, std::mt19937& random) {
  static const std::string block = [] {
    std::mt19937 letters(9);
    std::string text(1'000'003, '\0');
    for (char& letter : text) letter = static_cast<char>(letters());
    return text;
  }();
  std::string content = block.substr(random() % block.size()).substr(0, bytes);
  while (content.size() < bytes) content.append(block, 0, bytes - content.size());
  return content;
}

// Writes tensors on the device, tensors in host memory and memory of the caller to one file.
TEST(WriteQueue, WritesAndHashesInOrder) {
  struct Case {
    std::size_t largest;
    std::int64_t bytes;  // more than fits into the queue's buffers
  };
  for (const auto& [largest, most] : {Case{10, 900'000}, Case{std::size_t{1} << 30, 90'000'000}}) {
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
      for (const std::int64_t bytes : {std::int64_t{3}, most, std::int64_t{0}, std::int64_t{1},
                                       std::int64_t{8} << 20, std::int64_t{5}, most / 3 * 2})
        for (const Side side : {Side::Device, Side::Host}) {
          const std::string content = random_content(static_cast<std::size_t>(bytes), random);
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
