#pragma once

#include <filesystem>

namespace kintsugi {

// Locks an output for this process. The system releases the lock if the process dies.
class OutputLock {
 public:
  // UserError if another process holds it. The destructor removes the file PREFIX.lock.
  explicit OutputLock(const std::filesystem::path& prefix);
  ~OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace kintsugi
