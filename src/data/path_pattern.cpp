#include "data/path_pattern.h"

#include <glob.h>

#include <algorithm>

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

}  // namespace kintsugi
