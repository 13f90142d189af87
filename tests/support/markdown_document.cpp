#include "support/markdown_document.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <regex>
#include <sstream>

#include "support/paths.h"

namespace kintsugi {

namespace {

const std::string kAny = "…";

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\n");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\n") + 1 - begin);
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Without up to `count` spaces at the begin.
std::string without_indent(const std::string& line, std::size_t count) {
  return line.substr(std::min({count, line.find_first_not_of(' '), line.size()}));
}

// The bytes of one of the dots and bars that draw charts (U+2800-28FF, U+2580-259F, U+25CF) at
// `at`, or 0.
std::size_t chart_character(const std::string& text, std::size_t at) {
  if (at + 3 > text.size() || text[at] != '\xE2') return 0;
  const auto second = static_cast<unsigned char>(text[at + 1]);
  const auto third = static_cast<unsigned char>(text[at + 2]);
  const bool dots = second >= 0xA0 && second <= 0xA3;
  const bool bars = second == 0x96 && third < 0xA0;
  return dots || bars || (second == 0x97 && third == 0x8F) ? 3 : 0;
}

class Parser {
 public:
  explicit Parser(const std::string& text) : lines_(split_lines(text)) {}

  MarkdownDocument parse() {
    while (next_ < lines_.size()) {
      const std::string line = trimmed(lines_[next_]);
      if (line.starts_with("```"))
        read_block();
      else if (line.starts_with("<!--"))
        read_mark();
      else
        read_text();
    }
    refuse_marks();
    return std::move(document_);
  }

 private:
  int line_number() const { return static_cast<int>(next_) + 1; }
  void mistake(int line, const std::string& what) {
    document_.mistakes.push_back("line " + std::to_string(line) + ": " + what);
  }

  void read_block() {
    const std::string& fence = lines_[next_];
    const std::size_t indent = fence.find('`');
    CodeBlock block{line_number(), trimmed(fence.substr(indent + 3)), {}, std::move(marks_)};
    marks_.clear();
    if (block.language.empty())
      mistake(block.line, "say what the block has: ```sh, ```console, ```yaml, …, or ```text");
    for (++next_; next_ < lines_.size() && trimmed(lines_[next_]) != "```"; ++next_)
      block.lines.push_back(without_indent(lines_[next_], indent));
    ++next_;
    document_.blocks.push_back(std::move(block));
  }

  void read_mark() {
    BlockMark mark{line_number(), "", ""};
    std::string text;
    while (next_ < lines_.size()) {
      text += lines_[next_] + "\n";
      if (lines_[next_++].find("-->") != std::string::npos) break;
    }
    text = text.substr(text.find("<!--") + 4);
    text = text.substr(0, text.rfind("-->"));
    const std::size_t colon = text.find(':');
    mark.name = trimmed(text.substr(0, colon));
    if (colon != std::string::npos) mark.text = trimmed(text.substr(colon + 1));
    marks_.push_back(std::move(mark));
  }

  void read_text() {
    const std::string& line = lines_[next_];
    if (!trimmed(line).empty()) refuse_marks();
    static const std::regex span("`([^`]+)`"), link("\\]\\(([^)\\s]+)\\)");
    for (std::sregex_iterator match(line.begin(), line.end(), span), end; match != end; ++match)
      document_.code_spans.push_back((*match)[1].str());
    for (std::sregex_iterator match(line.begin(), line.end(), link), end; match != end; ++match)
      document_.links.push_back((*match)[1].str());
    if (line.starts_with("#")) document_.anchors.insert(anchor_of(line));
    ++next_;
  }

  // As GitHub makes it: lower case, hyphens for spaces, no punctuation.
  static std::string anchor_of(const std::string& heading) {
    std::string anchor;
    for (const char c : heading.substr(heading.find_first_not_of("# ")))
      if (c == ' ')
        anchor += '-';
      else if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_')
        anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return anchor;
  }

  void refuse_marks() {
    for (const BlockMark& mark : marks_)
      mistake(mark.line, "no code block follows <!-- " + mark.name + " … -->");
    marks_.clear();
  }

  std::vector<std::string> lines_;
  std::size_t next_ = 0;
  std::vector<BlockMark> marks_;  // read, and not yet followed by a block
  MarkdownDocument document_;
};

// Numbers, charts and spaces without what differs from run to run.
std::string without_numbers(const std::string& line) {
  std::string text;
  for (std::size_t i = 0; i < line.size();) {
    const std::size_t drawn = chart_character(line, i);
    text += drawn > 0 ? ' ' : line[i];
    i += std::max<std::size_t>(drawn, 1);
  }
  static const std::regex number(
      "[-+]?[0-9]+([.,:][0-9]+)*(e[-+]?[0-9]+)?"
      "( ?(ns|µs|ms|s|min|h|d|[kMGTm]|[kKMGT]?i?B|bytes)(?![A-Za-z]))?|–");
  static const std::regex several("#( ?#)+"), spaces(" +");
  // A run on a busy machine reports no MFU.
  static const std::regex mfu("MFU # %( \\(# % full\\))?");
  text = std::regex_replace(text, number, "#");
  text = std::regex_replace(text, mfu, "MFU #");
  text = std::regex_replace(text, several, "#");
  return trimmed(std::regex_replace(text, spaces, " "));
}

// `shown` is the text before, between and behind the places of "…".
bool line_matches(const std::string& shown, const std::string& line) {
  if (shown.find(kAny) == std::string::npos) return shown == line;
  std::vector<std::string> parts;
  std::size_t begin = 0, at = 0;
  for (; (at = shown.find(kAny, begin)) != std::string::npos; begin = at + kAny.size())
    parts.push_back(shown.substr(begin, at - begin));
  const std::string last = shown.substr(begin);
  if (!line.starts_with(parts.front())) return false;
  std::size_t next = parts.front().size();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const std::size_t found = line.find(parts[i], next);
    if (found == std::string::npos) return false;
    next = found + parts[i].size();
  }
  return line.size() >= next + last.size() && line.ends_with(last);
}

// The lines from `s` and `l` on, by backtracking: there are few of them.
bool lines_match(const std::vector<std::string>& shown, std::size_t s,
                 const std::vector<std::string>& lines, std::size_t l) {
  for (; s < shown.size(); ++s, ++l) {
    if (shown[s] == kAny) {
      for (std::size_t skip = l; skip <= lines.size(); ++skip)
        if (lines_match(shown, s + 1, lines, skip)) return true;
      return false;
    }
    if (l >= lines.size() || !line_matches(shown[s], lines[l])) return false;
  }
  return l == lines.size();
}

// Without blank lines and trailing spaces, and in a form that compares.
std::vector<std::string> comparable(const std::vector<std::string>& lines, Numbers numbers) {
  std::vector<std::string> kept;
  for (std::string line : lines) {
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (numbers == Numbers::Vary) line = without_numbers(line);
    if (!line.empty()) kept.push_back(line);
  }
  return kept;
}

}  // namespace

std::string CodeBlock::text() const {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

const BlockMark* CodeBlock::mark(const std::string& name) const {
  const auto found =
      std::find_if(marks.begin(), marks.end(), [&](const BlockMark& m) { return m.name == name; });
  return found == marks.end() ? nullptr : &*found;
}

std::vector<ShownCommand> CodeBlock::commands() const {
  std::vector<ShownCommand> found;
  if (language != "sh" && language != "console") return found;
  const bool console = language == "console";
  bool continued = false;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string& text = lines[i];
    const bool starts = console ? text.starts_with("$ ")
                                : !trimmed(text).empty() && !trimmed(text).starts_with("#");
    if (continued)
      found.back().text += "\n" + text;
    else if (starts)
      found.push_back({line + 1 + static_cast<int>(i), text.substr(console ? 2 : 0), {}});
    else if (console && !found.empty())
      found.back().output.push_back(text);
    continued = (continued || starts) && text.ends_with("\\");
  }
  return found;
}

MarkdownDocument parse_markdown(const std::string& text) { return Parser(text).parse(); }

std::vector<std::string> markdown_documents() {
  std::vector<std::string> names = {"README.md"};
  std::error_code missing;  // the list is made before main(): no exception
  for (const auto& entry :
       std::filesystem::directory_iterator(source_directory() + "/docs", missing))
    if (entry.path().extension() == ".md")
      names.push_back("docs/" + entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

const MarkdownDocument& markdown_document(const std::string& name) {
  static std::map<std::string, MarkdownDocument> documents;
  const auto known = documents.find(name);
  if (known != documents.end()) return known->second;
  return documents[name] = parse_markdown(content_of(source_directory() + "/" + name));
}

bool output_matches(const std::vector<std::string>& shown, const std::string& output,
                    Numbers numbers) {
  return lines_match(comparable(shown, numbers), 0, comparable(split_lines(output), numbers), 0);
}

}  // namespace kintsugi
