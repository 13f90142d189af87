// The reader of documents itself: what it takes for a command, and which outputs it finds the same.
#include "support/markdown_document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kintsugi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

CodeBlock only_block(const std::string& text) {
  const MarkdownDocument document = parse_markdown(text);
  EXPECT_EQ(document.blocks.size(), 1u);
  return document.blocks.at(0);
}

TEST(MarkdownDocument, EveryLineOfAShellBlockIsACommand) {
  const CodeBlock block = only_block("Text\n\n```sh\nfirst a \\\n  b\n\n# a remark\nsecond\n```\n");
  const std::vector<ShownCommand> commands = block.commands();
  ASSERT_EQ(commands.size(), 2u);
  EXPECT_EQ(commands[0].text, "first a \\\n  b");
  EXPECT_EQ(commands[0].line, 4);
  EXPECT_EQ(commands[1].text, "second");
  EXPECT_THAT(commands[1].output, IsEmpty());
}

TEST(MarkdownDocument, ConsoleBlocksShowOutput) {
  const CodeBlock block = only_block("  ```console\n  $ first\n  a\n    b\n  $ second\n  ```\n");
  const std::vector<ShownCommand> commands = block.commands();
  ASSERT_EQ(commands.size(), 2u);
  EXPECT_EQ(commands[0].text, "first");
  EXPECT_THAT(commands[0].output, ElementsAre("a", "  b"));
  EXPECT_THAT(commands[1].output, IsEmpty());
  EXPECT_THAT(only_block("```text\n$ no command\n```\n").commands(), IsEmpty());
}

TEST(MarkdownDocument, MarksBelongToTheNextBlock) {
  const CodeBlock block = only_block(
      "<!-- not run: needs a: colon -->\n<!-- before:\nfirst\nsecond\n-->\n\n```sh\nx\n```\n");
  ASSERT_EQ(block.marks.size(), 2u);
  EXPECT_EQ(block.mark("not run")->text, "needs a: colon");
  EXPECT_EQ(block.mark("before")->text, "first\nsecond");
  EXPECT_EQ(block.mark("before")->line, 2);
  EXPECT_EQ(block.mark("file"), nullptr);
}

TEST(MarkdownDocument, MistakesOfAWriter) {
  EXPECT_THAT(parse_markdown("<!-- numbers vary -->\nText\n```sh\nx\n```\n").mistakes,
              ElementsAre(HasSubstr("line 1: no code block follows")));
  EXPECT_THAT(parse_markdown("a\n```\nx\n```\n").mistakes,
              ElementsAre(HasSubstr("line 2: say what the block has")));
  EXPECT_THAT(parse_markdown("`a` and `b c`\n```text\n`d`\n```\n").code_spans,
              ElementsAre("a", "b c"));
}

TEST(OutputMatches, LineByLine) {
  EXPECT_TRUE(output_matches({"a", "b"}, "a  \n\nb\n", Numbers::Same));
  EXPECT_FALSE(output_matches({"a"}, "a\nb\n", Numbers::Same));
  EXPECT_FALSE(output_matches({"a", "b"}, "a\n", Numbers::Same));
  EXPECT_FALSE(output_matches({"a", "b"}, "b\na\n", Numbers::Same));
}

TEST(OutputMatches, EllipsesStandForAnything) {
  EXPECT_TRUE(output_matches({"…", "b", "…"}, "a\nb\nc\n", Numbers::Same));
  EXPECT_TRUE(output_matches({"…", "b"}, "b\na\nb\n", Numbers::Same));
  EXPECT_FALSE(output_matches({"…", "b"}, "a\n", Numbers::Same));
  EXPECT_TRUE(output_matches({"a … c…"}, "a b b c d\n", Numbers::Same));
  EXPECT_FALSE(output_matches({"a … c"}, "a b b d\n", Numbers::Same));
  EXPECT_FALSE(output_matches({"aa…aa"}, "aaa\n", Numbers::Same));
}

TEST(OutputMatches, NumbersWithTheirUnits) {
  EXPECT_FALSE(output_matches({"loss 4.5"}, "loss 4.6\n", Numbers::Same));
  EXPECT_TRUE(output_matches({"loss 4.5  lr 1.0e-04"}, "loss 11.25 lr 3e-3\n", Numbers::Vary));
  EXPECT_TRUE(
      output_matches({"in 1 h 53 min, 4.1 k tokens/s"}, "in 13 s, 912 tokens/s\n", Numbers::Vary));
  EXPECT_TRUE(output_matches({"3.9 MiB of text"}, "812 KiB of text\n", Numbers::Vary));
  EXPECT_TRUE(output_matches({"MFU 65.1 % (68.7 % full)  norm"}, "MFU – norm\n", Numbers::Vary));
  EXPECT_TRUE(output_matches({"MFU 29.5 %  J/token"}, "MFU –  J/token\n", Numbers::Vary));
  EXPECT_FALSE(output_matches({"idle 29.5 %  J/token"}, "idle –  J/token\n", Numbers::Vary));
  EXPECT_TRUE(output_matches({"J/token –"}, "J/token 0.31\n", Numbers::Vary));
  EXPECT_TRUE(output_matches({"7.6 ⠑⡄ ●", "█▒ step 3"}, "  5.1 ⠑\n███▒ step 12\n", Numbers::Vary));
  EXPECT_FALSE(output_matches({"loss 4.5"}, "loss nan\n", Numbers::Vary));
  EXPECT_FALSE(output_matches({"4.5 seconds"}, "4.5 steps\n", Numbers::Vary));
}

}  // namespace
}  // namespace kintsugi
