#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "core/file.h"

namespace kintsugi {

// A directory that appears complete or not at all. It is filled under the name .NAME.tmp beside its
// target and renamed by publish(). Without publish(), the destructor removes it. What a killed
// process left is removed by the next one with the same target.
class NewDirectory {
 public:
  // UserError if the target exists and may not be replaced, if its parent does not exist, or if
  // another process writes it. Only a directory that contains `replaceable` may be replaced, so
  // that a mistyped path does not delete other files.
  NewDirectory(const std::filesystem::path& target, bool overwrite, const std::string& replaceable);
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  const std::filesystem::path& path() const { return temporary_; }  // write files here
  void write(const std::string& name, const std::string& content);  // and sync it
  void publish();  // throws Failure and leaves the target unchanged if a rename fails

 private:
  std::filesystem::path target_, temporary_, old_;
  std::unique_ptr<DirectoryLock> lock_;  // set if temporary_ is ours to remove
};

}  // namespace kintsugi
