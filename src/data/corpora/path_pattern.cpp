#include "data/corpora/path_pattern.h"

#include <glob.h>

#include <algorithm>
#include <set>

#include "core/error.h"

namespace kintsugi {

bool is_pattern(const std::string& name) {
  std::error_code ignored;
  return name.find_first_of("*?[{") != std::string::npos && !std::filesystem::exists(name, ignored);
}

std::vector<std::filesystem::path> expand_pattern(const std::string& pattern) {
  glob_t found{};
  const int code = ::glob(pattern.c_str(), GLOB_NOSORT | GLOB_BRACE, nullptr, &found);
  std::vector<std::filesystem::path> paths;
  for (std::size_t i = 0; i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  if (code != 0 && code != GLOB_NOMATCH) user_error("cannot search for {}", pattern);
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  return paths;
}

std::vector<std::filesystem::path> expand_inputs(const std::vector<std::string>& patterns) {
  std::vector<std::filesystem::path> files;
  std::set<std::filesystem::path> seen;
  const auto add = [&](const std::filesystem::path& file) {
    if (std::filesystem::is_directory(file))
      user_error("{} is a directory: name its files with a pattern, like '{}/*.jsonl.zst'",
                 file.string(), file.string());
    if (seen.insert(std::filesystem::absolute(file).lexically_normal()).second)
      files.push_back(file);
  };
  for (const std::string& pattern : patterns) {
    if (!is_pattern(pattern)) {
      if (!std::filesystem::exists(pattern)) user_error("there is no file {}", pattern);
      add(pattern);
      continue;
    }
    const auto matches = expand_pattern(pattern);
    if (matches.empty()) user_error("no file matches {}", pattern);
    for (const auto& match : matches)
      if (!std::filesystem::is_directory(match)) add(match);
  }
  if (files.empty()) user_error("there are no input files");
  return files;
}

}  // namespace kintsugi
