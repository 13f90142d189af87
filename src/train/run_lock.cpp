#include "train/run_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "comm/supervisor_link.h"
#include "core/log.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLaunchLock = ".launch.lock";
constexpr const char* kRanksLock = ".lock";
constexpr const char* kDescriptorVariable = "KINTSUGI_LAUNCH_LOCK";
constexpr std::chrono::seconds kAtOnce{0}, kPatience{300};

bool is_supervised() {
  const char* const address = std::getenv(kSupervisorVariable);
  return address != nullptr && *address != '\0';
}

// Creates a directory and those above it. Returns the new ones, the innermost first.
std::vector<fs::path> create_folders(const fs::path& directory) {
  std::vector<fs::path> created;
  std::error_code error;
  for (fs::path one = directory; !one.empty() && !fs::exists(one, error); one = one.parent_path())
    created.push_back(one);
  fs::create_directories(directory, error);
  if (error) failure("cannot create {}: {}", directory.string(), error.message());
  return created;
}

// Where a directory that is open is now; empty if it was removed or that is unknown.
std::string place_of(int descriptor) {
  std::error_code unknown;
  const std::string place =
      fs::read_symlink(fmt::format("/proc/self/fd/{}", descriptor), unknown).string();
  return place.ends_with(" (deleted)") ? "" : place;
}

}  // namespace

RunLock::RunLock(const fs::path& directory)
    : directory_(directory), created_(create_folders(directory)) {
  descriptor_ = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  struct stat found {};
  if (descriptor_ < 0 || ::fstat(descriptor_, &found) != 0)
    failure("cannot open {}: {}", directory.string(), std::strerror(errno));
  device_ = found.st_dev;
  inode_ = found.st_ino;
}

RunLock::~RunLock() {
  ranks_.reset();
  launch_.reset();
  if (descriptor_ >= 0) ::close(descriptor_);
  std::error_code ignored;  // what is not empty stays
  for (const fs::path& one : created_) fs::remove(one, ignored);
}

std::unique_ptr<FileLock> RunLock::take(const char* name, std::chrono::seconds patience) const {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (bool noted = false;; noted = true) {
    std::string holder;
    if (auto lock = FileLock::try_take(directory_ / name, holder)) return lock;
    if (std::chrono::steady_clock::now() >= deadline)
      user_error(
          "{} is in use by {}: wait for it, stop it (touch {}), or choose another run directory",
          directory_.string(), holder, (directory_ / "stop").string());
    if (!noted) log_info("waiting for {}, which uses {}", holder, directory_.string());
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

std::unique_ptr<FileLock> RunLock::inherited_launch() const {
  const char* const number = std::getenv(kDescriptorVariable);
  if (number == nullptr) return nullptr;
  auto lock = FileLock::inherited(directory_ / kLaunchLock, std::atoi(number));
  ::unsetenv(kDescriptorVariable);
  return lock;
}

std::unique_ptr<RunLock> RunLock::for_launch(const fs::path& directory) {
  std::unique_ptr<RunLock> lock(new RunLock(directory));
  lock->launch_ = lock->take(kLaunchLock, kAtOnce);
  lock->take(kRanksLock, kAtOnce);  // ranks whose supervisor was killed
  return lock;
}

std::unique_ptr<RunLock> RunLock::for_supervisor(const fs::path& directory) {
  std::unique_ptr<RunLock> lock(new RunLock(directory));
  lock->launch_ = lock->inherited_launch();
  if (!lock->launch_) lock->launch_ = lock->take(kLaunchLock, kPatience);
  return lock;
}

std::unique_ptr<RunLock> RunLock::for_ranks(const fs::path& directory) {
  std::unique_ptr<RunLock> lock(new RunLock(directory));
  if (!is_supervised()) lock->launch_ = lock->take(kLaunchLock, kAtOnce);
  lock->ranks_ = lock->take(kRanksLock, is_supervised() ? kPatience : kAtOnce);
  return lock;
}

void RunLock::end_pass_on() {
  const char* const number = std::getenv(kDescriptorVariable);
  if (number == nullptr) return;
  ::fcntl(std::atoi(number), F_SETFD, FD_CLOEXEC);
  ::unsetenv(kDescriptorVariable);
}

void RunLock::pass_on() const {
  ::setenv(kDescriptorVariable, std::to_string(launch_->pass_on()).c_str(), 1);
}

void RunLock::check_in_place() const {
  struct stat found {};
  const int status = ::stat(directory_.c_str(), &found);
  if (status == 0 && found.st_dev == device_ && found.st_ino == inode_) return;
  // Other errors may pass; a write reports those that do not.
  if (status != 0 && errno != ENOENT && errno != ENOTDIR) return;
  const std::string place = place_of(descriptor_);
  if (place.empty())
    throw RunDirectoryMoved(fmt::format(
        "the run directory {} was removed while the run was using it: the run ends and writes "
        "nothing more",
        directory_.string()));
  throw RunDirectoryMoved(fmt::format(
      "the run directory {} was moved to {} while the run was using it: the run ends and writes "
      "nothing more; to continue from the newest checkpoint there, set run.dir={}",
      directory_.string(), place, place));
}

}  // namespace kintsugi
