#include "core/table.h"

#include <gtest/gtest.h>

namespace kintsugi {
namespace {

TEST(TableCells, MarkdownShowsTextAsItIs) {
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

TEST(TableCells, CsvQuotesAndDefusesFormulas) {
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

// One row with every kind of cell, and one with nothing.
Table sample() {
  Table table({Column::text("name", "name"), Column::number("count", "count"),
               Column::number("loss", "loss", "{:.2f}"), Column::percent("share"),
               Column::bytes("size", "bytes"), Column::hidden("details")});
  const nlohmann::ordered_json details = {{"x", 1}};
  table.add({"a|b", 12, 2.5, 0.125, 2048, {details, "not shown"}});
  table.add({{"long name", "é"}, std::optional<int>(), Cell::missing(), 1, Cell::missing(), 7});
  return table;
}

TEST(Table, TextHasColumnsAsWideAsTheirCells) {
  EXPECT_EQ(sample().text(),
            "name  count  loss    share   size\n"
            "a|b      12  2.50   12.5 %  2 KiB\n"
            "é         -     -  100.0 %      -\n");
  EXPECT_EQ(sample().text({.indent = 2, .most_rows = 0}),
            "  name  count  loss  share  size\n"
            "  2 more\n");
  Table facts({Column::text(""), Column::number("")});
  facts.add({"tokens", 1});
  EXPECT_EQ(facts.text(), "tokens  1\n");
}

TEST(Table, HtmlShowsTextAsItIs) {
  EXPECT_EQ(html_text("<b class=\"x\">&\n</b>"), "&lt;b class=&quot;x&quot;&gt;&amp; &lt;/b&gt;");
  Table table({Column::text("a<b"), Column::number("n", "n", "{:.1f}"), Column::hidden("x")});
  table.add({"<script>", 2.25, 7});
  EXPECT_EQ(table.html(),
            "<table>\n<tr><th>a&lt;b</th><th class=number>n</th></tr>\n"
            "<tr><td>&lt;script&gt;</td><td class=number>2.2</td></tr>\n</table>\n");
}

TEST(Table, MarkdownAlignsNumbersToTheRight) {
  EXPECT_EQ(sample().markdown(),
            "| name | count | loss | share | size |\n"
            "| --- | --: | --: | --: | --: |\n"
            "| a\\|b | 12 | 2.50 | 12.5 % | 2 KiB |\n"
            "| é | - | - | 100.0 % | - |\n");
}

TEST(Table, CsvLeavesMissingValuesOut) {
  EXPECT_EQ(sample().csv(),
            "name,count,loss,share,size\n"
            "a|b,12,2.50,12.5 %,2 KiB\n"
            "é,,,100.0 %,\n");
  Table table({Column::text("text"), Column::number("number")});
  table.add({"-1", -1});
  EXPECT_EQ(table.csv(), "text,number\n\"'-1\",-1\n");
}

TEST(Table, JsonHasTheValuesAsTheyAre) {
  EXPECT_EQ(sample().json().dump(),
            R"([{"name":"a|b","count":12,"loss":2.5,"bytes":2048,"details":{"x":1}},)"
            R"({"name":"long name","count":null,"loss":null,"bytes":null,"details":7}])");
  Column optional = Column::number("count", "count");
  optional.optional = true;
  Table table({Column::text("name", "name"), optional});
  table.add({"a", 1});
  table.add({"b", Cell::missing()});
  EXPECT_EQ(table.json().dump(), R"([{"name":"a","count":1},{"name":"b"}])");
}

TEST(Table, ControlCharactersStayInTheirLine) {
  Table table({Column::text("text")});
  table.add({"a\nb\x1b"});
  EXPECT_EQ(table.text(), "text\na b\\x1b\n");
}

}  // namespace
}  // namespace kintsugi
