#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "core/file.h"

namespace kintsugi {

// The content of every file under a directory, by relative path; for a link, its target.
inline std::map<std::string, std::string> directory_contents(
    const std::filesystem::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    const std::string name = entry.path().lexically_relative(directory).string();
    if (entry.is_symlink())
      files[name] = "-> " + std::filesystem::read_symlink(entry.path()).string();
    else
      files[name] = entry.is_directory() ? "a directory" : read_text_file(entry.path());
  }
  return files;
}

}  // namespace kintsugi
