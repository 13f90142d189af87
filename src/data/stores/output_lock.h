#pragma once

#include <filesystem>

namespace kintsugi {

// Holds the name of an output for this process; the system lets go of it when the process dies.
class OutputLock {
 public:
  // UserError if another process has it. The file PREFIX.lock goes away with the lock.
  explicit OutputLock(const std::filesystem::path& prefix);
  ~OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace kintsugi
