#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "energy/meters/find_meters.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

namespace kintsugi {

// A root directory with one library of tests/energy/fakes, and the library's state.
class FakeTree {
 public:
  // `as`: the path below the root. A copy, so that each tree has a library of its own.
  FakeTree(const std::string& name, const std::string& as) : library_(directory_ / as) {
    add(name, as);
    std::filesystem::create_directory(directory_ / "tmp");
  }
  void add(const std::string& name, const std::string& as) const {
    std::filesystem::create_directories((directory_ / as).parent_path());
    std::filesystem::copy_file(fake_library(name), directory_ / as);
  }

  const std::filesystem::path& root() const { return directory_.path(); }
  MeterSearch search() const { return {.root = root()}; }
  MeterSearch search(const std::vector<std::string>& gpus) const {
    return {.root = root(), .gpus = gpus};
  }
  void set(const std::string& name, const std::string& value) const {
    auto state = read();
    state[name] = value;
    std::ofstream file(library_.parent_path() / "state");
    for (const auto& [key, word] : state) file << key << ' ' << word << '\n';
  }
  std::string get(const std::string& name) const { return read()[name]; }

 private:
  std::map<std::string, std::string> read() const {
    std::map<std::string, std::string> state;
    std::ifstream file(library_.parent_path() / "state");
    std::string name, value;
    while (file >> name >> value) state[name] = value;
    return state;
  }

  TemporaryDirectory directory_;
  std::filesystem::path library_;
};

}  // namespace kintsugi
