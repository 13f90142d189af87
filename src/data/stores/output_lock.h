#pragma once

#include <filesystem>
#include <memory>

#include "core/file_lock.h"

namespace kintsugi {

// Locks an output for this process. The system releases the lock if the process dies.
class OutputLock {
 public:
  // UserError if another process holds it. The destructor removes the file PREFIX.lock.
  explicit OutputLock(const std::filesystem::path& prefix);

 private:
  std::unique_ptr<FileLock> lock_;
};

}  // namespace kintsugi
