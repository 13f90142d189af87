// The budget of docs/architecture.md, held against the source: how much code a folder may have; and
// that the mutations fit the source.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "support/paths.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

struct Size {
  std::int64_t lines = 0, files = 0;
  std::int64_t fullest = 0;  // files in the fullest folder, without its subfolders
};
using Sizes = std::map<std::string, Size>;  // by folder of src/; "src": all of them

std::vector<std::string> lines_of(const fs::path& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

Sizes sizes() {
  const fs::path source = fs::path(source_directory()) / "src";
  Sizes sizes;
  std::map<fs::path, std::int64_t> flat;
  for (const auto& entry : fs::recursive_directory_iterator(source)) {
    if (!entry.is_regular_file()) continue;
    const std::string folder = fs::relative(entry.path(), source).begin()->string();
    const auto lines = static_cast<std::int64_t>(lines_of(entry.path()).size());
    const std::int64_t in_folder = ++flat[entry.path().parent_path()];
    for (Size* size : {&sizes[folder], &sizes["src"]}) {
      size->lines += lines;
      size->files += 1;
      size->fullest = std::max(size->fullest, in_folder);
    }
  }
  return sizes;
}

std::int64_t number(std::string text) {
  std::erase(text, ',');
  return std::stoll(text);
}

// The rows "| `core/` | 4,500 | 50 | 40 |" of the section "The budget".
Sizes budget() {
  static const std::regex row("^\\| `([a-z]+)/` \\| ([0-9,]+) \\| ([0-9,]+) \\| ([0-9,]+) \\|$");
  Sizes sizes;
  bool inside = false;
  std::smatch match;
  for (const std::string& line :
       lines_of(fs::path(source_directory()) / "docs" / "architecture.md")) {
    if (line.starts_with("## ")) inside = line == "## The budget";
    if (inside && std::regex_match(line, match, row))
      sizes[match[1]] = {number(match[2]), number(match[3]), number(match[4])};
  }
  return sizes;
}

TEST(Budget, NoFolderHasMoreCodeThanItsAllowance) {
  const Sizes allowed = budget(), actual = sizes();
  for (const auto& [folder, size] : actual) {
    const auto found = allowed.find(folder);
    ASSERT_NE(found, allowed.end()) << folder << " has no row in docs/architecture.md";
    EXPECT_LE(size.lines, found->second.lines) << "lines of " << folder;
    EXPECT_LE(size.files, found->second.files) << "files of " << folder;
    EXPECT_LE(size.fullest, found->second.fullest) << "files in one folder of " << folder;
  }
  for (const auto& [folder, size] : allowed)
    EXPECT_TRUE(actual.contains(folder)) << folder << " is in the budget only";
}

// An allowance is a little more than what is there: room that nobody uses is given back.
TEST(Budget, NoAllowanceIsGenerous) {
  const Sizes allowed = budget();
  for (const auto& [folder, size] : sizes()) {
    const auto found = allowed.find(folder);
    if (found == allowed.end()) continue;
    EXPECT_LE(found->second.lines, size.lines + std::max<std::int64_t>(size.lines / 20, 200))
        << "lower the lines of " << folder << " to what it has";
    EXPECT_LE(found->second.files, size.files + 10) << "lower the files of " << folder;
  }
}

// A mutation that does not apply would end make mutation-check, which takes too long for every run.
TEST(Mutations, ApplyToTheSource) {
  if (std::system("git --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "git is not installed";
  const fs::path folder = fs::path(source_directory()) / "tests/mutations";
  int patches = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".patch") continue;
    ++patches;
    const std::string command =
        fmt::format("cd '{}' && git apply --check '{}'", source_directory(), entry.path().string());
    EXPECT_EQ(std::system(command.c_str()), 0) << entry.path().filename();
  }
  EXPECT_GT(patches, 80);
}

}  // namespace
}  // namespace kintsugi
