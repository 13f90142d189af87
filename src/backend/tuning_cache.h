#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace kintsugi {

// Results of autotuning in a text file, one line "owner<TAB>key<TAB>value" each. The owner names
// what the values are valid for (GPU, library version). Several owners and several processes can
// share one file.
class TuningCache {
 public:
  // With an empty path the cache is in memory only. A missing or damaged file is an empty cache,
  // never an error.
  TuningCache(std::filesystem::path path, std::string owner);

  std::optional<std::string> find(const std::string& key) const;
  // Stores the value in memory and in the file, and keeps entries that other processes have added
  // to the file. If the file cannot be written, the cache continues in memory.
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
