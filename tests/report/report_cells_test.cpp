#include <gtest/gtest.h>

#include "report/documents/cells.h"

namespace kintsugi {
namespace {

TEST(ReportCells, MarkdownShowsTextAsItIs) {
  EXPECT_EQ(markdown_text("plain text, 1.5 %"), "plain text, 1.5 %");
  EXPECT_EQ(markdown_text("a|b"), "a\\|b");
  EXPECT_EQ(markdown_text("<script>&"), "&lt;script&gt;&amp;");
  EXPECT_EQ(markdown_text("*x* `y` [z](u) ![p](q) # $1$ ~w~"),
            "\\*x\\* \\`y\\` \\[z\\](u) !\\[p\\](q) # \\$1\\$ \\~w\\~");
  EXPECT_EQ(markdown_text("a\nb\tc\\"), "a b c\\\\");
  EXPECT_EQ(markdown_text("valid_loss _x_"), "valid_loss \\_x\\_");
  EXPECT_EQ(markdown_text("http://evil www.evil"), "http\\://evil www\\.evil");
  EXPECT_EQ(markdown_text("\x1b[2J\xFF"), "\\\\x1b\\[2J\\\\xff");
}

TEST(ReportCells, CsvQuotesAndDefusesFormulas) {
  EXPECT_EQ(csv_text("plain"), "plain");
  EXPECT_EQ(csv_text("a,b"), "\"a,b\"");
  EXPECT_EQ(csv_text("say \"x\""), "\"say \"\"x\"\"\"");
  EXPECT_EQ(csv_text("a\nb"), "a b");
  for (const char* start : {"=", "+", "-", "@"})
    EXPECT_EQ(csv_text(start + std::string("1+1")), "\"'" + std::string(start) + "1+1\"");
  EXPECT_EQ(csv_text("\t=1"), "\"' =1\"");
  EXPECT_EQ(csv_text("\r=1"), "\\x0d=1");  // printable: begins with a backslash
  EXPECT_EQ(csv_text(""), "");
}

TEST(ReportCells, Table) {
  EXPECT_EQ(to_markdown({.header = {"a", "b"}, .numbers = {false, true}, .rows = {{"x", "1"}}}),
            "| a | b |\n| --- | --: |\n| x | 1 |\n");
}

}  // namespace
}  // namespace kintsugi
