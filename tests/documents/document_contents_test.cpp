// What README.md and docs/*.md say without being run: their marks and the options that they name.
#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/markdown_document.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

struct MarkRule {
  bool text, commands, output;  // what the mark needs: a text of its own, and in its block
};
const std::map<std::string, MarkRule> kMarks = {
    {"not run", {.text = true, .commands = true, .output = false}},
    {"before", {.text = true, .commands = false, .output = false}},
    {"file", {.text = true, .commands = false, .output = false}},
    {"server", {.text = false, .commands = true, .output = false}},
    {"output of", {.text = true, .commands = false, .output = false}},
    {"exits with 1", {.text = true, .commands = true, .output = false}},
    {"numbers vary", {.text = false, .commands = false, .output = true}},
    {"output not compared", {.text = true, .commands = true, .output = true}},
};

bool is_run(const CodeBlock& block) {
  return block.mark("not run") == nullptr &&
         (block.mark("output of") != nullptr || !block.commands().empty());
}

bool shows_output(const CodeBlock& block) {
  return block.mark("output of") != nullptr ||
         std::ranges::any_of(block.commands(),
                             [](const ShownCommand& c) { return !c.output.empty(); });
}

// What is wrong with a mark of this block, or nothing.
std::string misuse(const BlockMark& mark, const CodeBlock& block) {
  const auto rule = kMarks.find(mark.name);
  const bool commands = !block.commands().empty();
  if (rule == kMarks.end()) return "unknown mark";
  if (rule->second.text && mark.text.empty()) return "say why, or which, behind a colon";
  if (rule->second.commands && !commands) return "the block has no commands";
  if (rule->second.output && !shows_output(block)) return "the block shows no output";
  if ((mark.name == "file" || mark.name == "output of") && commands)
    return "the block has commands";
  if (mark.name != "not run" && mark.name != "file" && !is_run(block)) return "nothing is run";
  if (mark.name == "exits with 1" &&
      std::ranges::none_of(block.commands(),
                           [&](const ShownCommand& c) { return c.text.starts_with(mark.text); }))
    return "no command of the block begins like this";
  return "";
}

TEST(Documents, EveryBlockAndMarkSaysWhatItIs) {
  for (const std::string& name : markdown_documents()) {
    const MarkdownDocument& document = markdown_document(name);
    for (const std::string& mistake : document.mistakes) ADD_FAILURE() << name << ", " << mistake;
    for (const CodeBlock& block : document.blocks)
      for (const BlockMark& mark : block.marks)
        EXPECT_EQ(misuse(mark, block), "") << name << ", line " << mark.line << ": " << mark.name;
  }
}

TEST(Documents, MisusedMarksAreFound) {
  for (const char* text :
       {"<!-- not run -->\n```sh\nx\n```\n", "<!-- not run: why -->\n```text\nx\n```\n",
        "<!-- numbers vary -->\n```sh\nx\n```\n",
        "<!-- nubmers vary -->\n```console\n$ x\n1\n```\n", "<!-- file: a -->\n```sh\nx\n```\n",
        "<!-- before: x -->\n```text\nx\n```\n", "<!-- exits with 1: diff -->\n```sh\nx\n```\n"}) {
    const CodeBlock block = parse_markdown(text).blocks.at(0);
    EXPECT_NE(misuse(block.marks.at(0), block), "") << text;
  }
}

TEST(Documents, LinksLeadSomewhere) {
  int seen = 0;
  for (const std::string& name : markdown_documents())
    for (const std::string& link : markdown_document(name).links) {
      if (link.starts_with("http")) continue;
      ++seen;
      const std::string file = link.substr(0, link.find('#'));
      const fs::path target =
          file.empty() ? fs::path(name) : (fs::path(name).parent_path() / file).lexically_normal();
      EXPECT_TRUE(fs::exists(source_directory() / target)) << name << ": " << link;
      if (link.find('#') == std::string::npos) continue;
      EXPECT_TRUE(
          markdown_document(target.string()).anchors.contains(link.substr(link.find('#') + 1)))
          << name << ": " << link;
    }
  EXPECT_GT(seen, 100);
}

// `tests/data`, but not `src/model/families/NAME.cpp`.
TEST(Documents, FilesExist) {
  static const std::regex path(
      "(src|tests|scripts|examples|bench|cmake|machines|container|docs)/[a-z0-9_./-]+");
  int seen = 0;
  for (const std::string& name : markdown_documents())
    for (const std::string& span : markdown_document(name).code_spans) {
      if (!std::regex_match(span, path)) continue;
      ++seen;
      EXPECT_TRUE(fs::exists(source_directory() / fs::path(span))) << name << ": " << span;
    }
  EXPECT_GT(seen, 50);
}

TEST(Documents, TargetsOfMakeExist) {
  static const std::regex call("^make ([a-z-]+)");
  const std::string makefile = "\n" + content_of(source_directory() + "/Makefile");
  int seen = 0;
  for (const std::string& name : markdown_documents()) {
    const MarkdownDocument& document = markdown_document(name);
    std::vector<std::string> texts = document.code_spans;
    for (const CodeBlock& block : document.blocks)
      for (const ShownCommand& command : block.commands()) texts.push_back(command.text);
    for (const std::string& text : texts) {
      std::smatch match;
      if (!std::regex_search(text, match, call)) continue;
      ++seen;
      EXPECT_THAT(makefile, testing::HasSubstr("\n" + match[1].str() + ":"))
          << name << ": " << text;
    }
  }
  EXPECT_GT(seen, 20);
}

// Options that the documents name without a command, and that other programs have: Megatron-LM,
// Slurm, EAR, TensorBoard, Apptainer.
const std::set<std::string> kOfOtherPrograms = {"--rampup-batch-size",
                                                "--global-batch-size",
                                                "--data-path",
                                                "--dataloader-type",
                                                "--reset-position-ids",
                                                "--reset-attention-mask",
                                                "--eod-mask-loss",
                                                "--ear",
                                                "--hint",
                                                "--gpu-freq",
                                                "--nv",
                                                "--array",
                                                "--no-kill",
                                                "--network",
                                                "--mpi",
                                                "--logdir",
                                                "--exclude"};

class DocumentedOptions : public ProgramTest {
 protected:
  using Options = std::set<std::string>;

  // By command ("data tokenize"), from the manual page.
  std::map<std::string, Options> options_of_all_commands() {
    static const std::regex hyphen(R"(\\-)"), section(R"(\.SS kintsugi ([a-z -]+))"),
        names(R"(\\fB(.*?)\\fR)");
    std::map<std::string, Options> options;
    std::string command;
    std::istringstream lines(std::regex_replace(run_kintsugi("completion man").out, hyphen, "-"));
    for (std::string line; std::getline(lines, line);) {
      std::smatch match;
      if (std::regex_match(line, match, section)) options[command = match[1].str()];
      if (std::regex_search(line, match, names)) options[command].merge(options_in(match[1].str()));
    }
    return options;
  }

  static Options options_in(const std::string& text) {
    static const std::regex option("(^|[ ,])(--[a-z][a-z0-9-]*)");
    Options found;
    for (std::sregex_iterator match(text.begin(), text.end(), option), end; match != end; ++match)
      found.insert((*match)[2].str());
    return found;
  }

  // Of the commands of kintsugi in `text`, those that have no such option.
  std::string unknown_in(const std::string& text) const {
    static const std::regex call(R"(\bkintsugi ([^|;&<>`]*))");
    std::string unknown;
    for (std::sregex_iterator match(text.begin(), text.end(), call), end; match != end; ++match) {
      std::string words = (*match)[1].str();
      words = words.substr(0, words.find(" -- "));
      std::string command;
      for (const auto& [known, unused] : options_)
        if ((words + " ").starts_with(known + " ") && known.size() > command.size())
          command = known;
      const Options& has = command.empty() ? of_no_command_ : options_.at(command);
      for (const std::string& option : options_in(words))
        if (!has.contains(option)) unknown += " " + command + " " + option;
    }
    return unknown;
  }

  std::map<std::string, Options> options_ = options_of_all_commands();
  Options of_no_command_ = {"--help", "--version"};
};

TEST_F(DocumentedOptions, OfCommandsExist) {
  ASSERT_TRUE(options_.contains("data tokenize"));
  EXPECT_EQ(unknown_in("mpirun -np 2 kintsugi data tokenize --input a --inptu b | kintsugi train"),
            " data tokenize --inptu");
  for (const std::string& name : markdown_documents()) {
    const MarkdownDocument& document = markdown_document(name);
    std::vector<std::string> texts = document.code_spans;
    for (const CodeBlock& block : document.blocks)
      for (const ShownCommand& command : block.commands()) texts.push_back(command.text);
    for (const std::string& text : texts) EXPECT_EQ(unknown_in(text), "") << name << ": " << text;
  }
}

TEST_F(DocumentedOptions, WithoutACommandExist) {
  Options known = kOfOtherPrograms;
  for (const auto& [command, options] : options_) known.insert(options.begin(), options.end());
  known.merge(of_no_command_);
  for (const std::string& name : markdown_documents())
    for (const std::string& span : markdown_document(name).code_spans) {
      if (!span.starts_with("--")) continue;
      for (const std::string& option : options_in(span))
        EXPECT_TRUE(known.contains(option)) << name << ": `" << span << "`: " << option;
    }
}

}  // namespace
}  // namespace kintsugi
