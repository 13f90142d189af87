#include "core/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "core/file.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

TEST(PrintableTest, EscapesControlCharacters) {
  EXPECT_EQ(printable("plain\ttext\n"), "plain\ttext\n");
  EXPECT_EQ(printable("ü – 漢 😀"), "ü – 漢 😀");
  EXPECT_EQ(printable("\x1b[2J\r\x07\x7f"), "\\x1b[2J\\x0d\\x07\\x7f");
  EXPECT_EQ(printable("\xC2\x9B"
                      "1m"),
            "\\xc2\\x9b1m")
      << "CSI as one character";
  EXPECT_EQ(printable("\xC2\xA0"), "\xC2\xA0")
      << "the first character that is no control character";
  EXPECT_EQ(printable("\x9B\xFF\xC3"), "\\x9b\\xff\\xc3") << "invalid and truncated UTF-8";
  EXPECT_EQ(printable("\xE6\xBC"
                      "a"),
            "\\xe6\\xbc"
            "a");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
}

// A rank logs from several threads while its run opens and closes log.txt.
TEST(LogFileTest, MayBeReplacedWhileOtherThreadsLog) {
  const TemporaryDirectory directory;
  std::atomic<bool> stop = false;
  std::atomic<int> heard = 0;
  redirect_log([&heard](LogLevel, std::string_view) { ++heard; });
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&] {
      while (!stop) log_to_file("a line");
    });
  threads.emplace_back([&] {
    while (!stop) log_message(LogLevel::Note, "to the listener");
  });
  for (int i = 0; i < 5000; ++i) {
    open_log_file(directory / (i % 2 == 0 ? "even.txt" : "odd.txt"));
    redirect_log([&heard](LogLevel, std::string_view) { ++heard; });
    if (i % 5 == 0) close_log_file();
  }
  while (heard == 0) std::this_thread::yield();
  open_log_file(directory / "odd.txt");
  log_to_file("the last line");
  stop = true;
  for (std::thread& thread : threads) thread.join();
  redirect_log({});
  close_log_file();
  EXPECT_THAT(read_text_file(directory / "odd.txt"), testing::HasSubstr(" the last line\n"));
}

TEST(LogFileTest, HoldsNoControlCharacters) {
  const TemporaryDirectory directory;
  open_log_file(directory / "log.txt");
  testing::internal::CaptureStderr();
  log_warning("the file {} is odd", "a\x1b[31m\r");
  log_message(LogLevel::Error, "no such file: a\nb");
  log_to_file("live \x1b[K");
  close_log_file();
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "warning: the file a\\x1b[31m\\x0d is odd\nerror: no such file: a\\nb\n");
  const std::string text = read_text_file(directory / "log.txt");
  EXPECT_THAT(text, testing::AllOf(testing::HasSubstr("warning the file a\\x1b[31m\\x0d is odd\n"),
                                   testing::HasSubstr("error no such file: a\\nb\n"),
                                   testing::HasSubstr("info live \\x1b[K\n")));
}

}  // namespace
}  // namespace kintsugi
