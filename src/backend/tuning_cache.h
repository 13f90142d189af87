#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace kintsugi {

// What was found by measuring, kept in a text file: one line "owner<TAB>key<TAB>value" each. The
// owner names what a value holds for (GPU, library version); several owners, and several processes,
// share one file.
class TuningCache {
 public:
  // An empty path keeps everything in memory. A file that is missing or damaged is an empty cache,
  // never an error.
  TuningCache(std::filesystem::path path, std::string owner);

  std::optional<std::string> find(const std::string& key) const;
  // Remembered at once; written with what others have added meanwhile. Where the file cannot be
  // written, the cache lives on in memory.
  void store(const std::string& key, const std::string& value);

 private:
  using Entries = std::map<std::string, std::string>;  // "owner<TAB>key" -> value
  Entries read() const;

  std::filesystem::path path_;
  std::string owner_;
  Entries entries_;
  bool writable_;
};

}  // namespace kintsugi
