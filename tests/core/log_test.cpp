#include "core/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
