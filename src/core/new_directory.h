#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/file.h"

namespace kintsugi {

// What a command writes into a directory. Only a directory with nothing else in it is replaced or
// removed, so that a mistyped path deletes no other files.
struct DirectoryKind {
  std::string name;                                        // "a model directory"
  std::string required;                                    // a file that each has
  std::function<bool(const std::string& file)> is_member;  // by its name below the directory
};

// A directory that appears complete or not at all. It is filled under the name .NAME.tmp beside its
// target and renamed by publish(). Without publish(), the destructor removes it. What a killed
// process left is removed by the next one with the same target.
class NewDirectory {
 public:
  // UserError if the target exists and may not be replaced, if its parent does not exist, or if
  // another process writes it.
  NewDirectory(const std::filesystem::path& target, bool overwrite, DirectoryKind kind);
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  const std::filesystem::path& path() const { return temporary_; }  // write files here
  void write(const std::string& name, const std::string& content);  // and sync it
  void publish();  // throws and leaves the target unchanged if a rename fails

  // The directories beside `target` that are removed when it is written.
  static std::vector<std::filesystem::path> temporaries(const std::filesystem::path& target);

 private:
  void replace_target();

  std::filesystem::path target_, temporary_, old_;
  bool overwrite_;
  DirectoryKind kind_;
  std::unique_ptr<DirectoryLock> lock_;  // set if temporary_ is ours to remove
};

}  // namespace kintsugi
