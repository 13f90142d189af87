#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <vector>

#include "core/error.h"
#include "core/file_lock.h"

namespace kintsugi {

// The directory of a run was moved, removed or replaced while the run used it.
class RunDirectoryMoved : public UserError {
 public:
  using UserError::UserError;
};

// Keeps a second job out of a run directory, from the checks of a launch to the end of the run.
//
// RUN_DIR/.launch.lock is held by `kintsugi launch` and the supervisor that it starts, or by a
// `kintsugi train` without a supervisor. RUN_DIR/.lock is held by rank 0, also if its supervisor
// was killed. All constructors create the directory; the destructor removes it if it is empty.
class RunLock {
 public:
  // These throw UserError, which names the process that uses the directory.
  static std::unique_ptr<RunLock> for_launch(const std::filesystem::path& directory);
  // Waits for the launch that has submitted this job, and for the lock of a dead node, which a
  // network file system may keep for minutes.
  static std::unique_ptr<RunLock> for_supervisor(const std::filesystem::path& directory);
  static std::unique_ptr<RunLock> for_ranks(const std::filesystem::path& directory);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Call it before writing. Throws RunDirectoryMoved, with the new place if it is known.
  void check_in_place() const;
  // Lets a supervisor that this process starts from now on hold the lock of the launch.
  void pass_on() const;
  static void end_pass_on();  // the processes after it do not hold it

 private:
  explicit RunLock(const std::filesystem::path& directory);
  std::unique_ptr<FileLock> take(const char* name, std::chrono::seconds patience) const;
  std::unique_ptr<FileLock> inherited_launch() const;

  std::filesystem::path directory_;
  std::vector<std::filesystem::path> created_;  // the innermost first
  int descriptor_ = -1;                         // of the directory
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::unique_ptr<FileLock> launch_, ranks_;
};

}  // namespace kintsugi
