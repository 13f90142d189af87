#include "backend/tuning_cache.h"

#include <fmt/core.h>

#include <fstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/file.h"

namespace kintsugi {

TuningCache::TuningCache(std::filesystem::path path, std::string owner)
    : path_(std::move(path)),
      owner_(std::move(owner)),
      entries_(read()),
      writable_(!path_.empty()) {}

TuningCache::Entries TuningCache::read() const {
  Entries entries;
  if (path_.empty()) return entries;
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find('\t');
    const std::size_t last = line.rfind('\t');
    if (first == std::string::npos || first == last || last + 1 == line.size()) continue;
    entries[line.substr(0, last)] = line.substr(last + 1);
  }
  return entries;
}

std::optional<std::string> TuningCache::find(const std::string& key) const {
  const auto found = entries_.find(owner_ + '\t' + key);
  if (found == entries_.end()) return std::nullopt;
  return found->second;
}

void TuningCache::store(const std::string& key, const std::string& value) {
  KINTSUGI_CHECK((owner_ + key + value).find_first_of("\t\n") == std::string::npos,
                 "a tuning cache entry must not contain tabs or line breaks: '{}' '{}' '{}'",
                 owner_, key, value);
  entries_[owner_ + '\t' + key] = value;
  if (!writable_) return;
  Entries merged = entries_;
  merged.merge(read());  // our own entries take precedence
  std::string text;
  for (const auto& [name, content] : merged) text += name + '\t' + content + '\n';
  try {
    std::error_code ignored;  // the write below reports the error
    if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), ignored);
    write_file_atomically(path_, text);
  } catch (const std::runtime_error&) {
    writable_ = false;
  }
}

}  // namespace kintsugi
