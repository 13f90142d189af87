#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "core/file.h"

namespace kintsugi {

// A lock file that one process holds. The system releases it when that process ends, however it
// ends, so a file that was left behind locks nothing. It contains who holds it. A file and not a
// directory is locked: on NFS a lock needs a file that is open for writing. On a file system
// without locks there is only a warning.
class FileLock {
 public:
  // Returns nothing if another process holds the lock; `holder` then says which one: "process 123
  // on n7". Throws Failure if the file cannot be created.
  static std::unique_ptr<FileLock> try_take(const std::filesystem::path& path, std::string& holder);
  // A lock that the process that started this one holds too, by a descriptor that it passed on.
  // Nothing if the descriptor is not that of the file.
  static std::unique_ptr<FileLock> inherited(const std::filesystem::path& path, int descriptor);
  ~FileLock();  // removes the file, unless it was inherited

  // Lets processes that this one starts from now on hold the lock too. Returns its descriptor.
  int pass_on() const;

 private:
  FileLock(std::filesystem::path path, FileDescriptor descriptor, bool own)
      : path_(std::move(path)), descriptor_(std::move(descriptor)), own_(own) {}

  std::filesystem::path path_;
  FileDescriptor descriptor_;
  bool own_;  // taken by this process
};

}  // namespace kintsugi
