#pragma once

#include <set>
#include <string>
#include <vector>

namespace kintsugi {

// An HTML comment directly before a code block: what the tests do with the block. Readers of the
// page do not see it. docs/contributing.md describes the names.
struct BlockMark {
  int line = 0;
  std::string name;  // "not run" of <!-- not run: needs a GPU -->
  std::string text;  // "needs a GPU"
};

struct ShownCommand {
  int line = 0;
  std::string text;
  std::vector<std::string> output;  // as shown; empty if none is
};

struct CodeBlock {
  int line = 0;
  std::string language;  // the word behind the opening fence
  std::vector<std::string> lines;
  std::vector<BlockMark> marks;

  std::string text() const;
  const BlockMark* mark(const std::string& name) const;
  // sh: every line. console: the lines behind "$ ", each with the output below it. A backslash at
  // the end of a line continues a command.
  std::vector<ShownCommand> commands() const;
};

struct MarkdownDocument {
  std::vector<CodeBlock> blocks;
  std::vector<std::string> code_spans;  // `inline code`, outside of the blocks
  std::vector<std::string> links;       // "data.md#a-store" of [text](data.md#a-store)
  std::set<std::string> anchors;        // "a-store" of the heading "A store"
  std::vector<std::string> mistakes;    // "line 12: …": what a writer has to correct
};

MarkdownDocument parse_markdown(const std::string& text);

// README.md and docs/*.md.
std::vector<std::string> markdown_documents();
const MarkdownDocument& markdown_document(const std::string& name);  // read once

enum class Numbers { Same, Vary };

// Whether the output of a command is as shown. "…" in a line stands for any text, a line "…" for
// any number of lines. Blank lines and spaces at the end do not count. With Numbers::Vary, numbers
// with their units, and the dots and bars of charts, may differ.
bool output_matches(const std::vector<std::string>& shown, const std::string& output,
                    Numbers numbers);

}  // namespace kintsugi
