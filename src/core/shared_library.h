#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kintsugi {

// Where a library of C functions is looked for.
struct LibraryNames {
  std::vector<std::string> files;         // "libnvidia-ml.so.1"; the first one found counts
  std::vector<std::string> folders = {};  // below the root, beside the usual ones: "opt/rocm/lib"
  bool stays_loaded = false;              // until the process ends: for one that has threads
};

// A library of C functions that is loaded at run time, and closed with the object unless it stays
// loaded.
class SharedLibrary {
 public:
  // With the root "/" the system's rules find it; with another root only files below that root are
  // loaded. Failure with the reason in one line.
  SharedLibrary(const std::filesystem::path& root, const LibraryNames& names);
  ~SharedLibrary();
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;

  const std::string& name() const { return name_; }
  std::filesystem::path path() const;  // of the file that was loaded; empty: unknown
  template <class Function>            // nullptr: the library has no such function
  Function* find(const char* function) const {
    return reinterpret_cast<Function*>(symbol(function));
  }
  // Calls a function that returns a code; the arguments must have exactly its parameters' types.
  // Empty if the library has no such function.
  template <class... Args>
  std::optional<int> call(const char* function, Args... args) const {
    auto* const address = find<int(Args...)>(function);
    if (address == nullptr) return std::nullopt;
    return address(args...);
  }

 private:
  void* symbol(const char* function) const;
  bool load(const std::filesystem::path& file, bool stays, std::string& why);

  std::string name_;
  void* handle_ = nullptr;
};

}  // namespace kintsugi
