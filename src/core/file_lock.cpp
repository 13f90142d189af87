#include "core/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/log.h"

namespace kintsugi {
namespace {

constexpr std::size_t kMostHolderBytes = 300;

// Whether the path still refers to the open file: the previous holder may have removed it.
bool still_there(int descriptor, const std::filesystem::path& path) {
  struct stat open {
  }, named{};
  return ::fstat(descriptor, &open) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         open.st_ino == named.st_ino && open.st_dev == named.st_dev;
}

std::string own_name() {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  return fmt::format("process {} on {}", ::getpid(), host);
}

std::string read_holder(int descriptor) {
  char text[kMostHolderBytes];
  const ssize_t bytes = ::pread(descriptor, text, sizeof text, 0);
  std::string holder(text, bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  holder.resize(std::min(holder.find('\n'), holder.size()));
  return holder.empty() ? "another process" : printable(holder);
}

}  // namespace

std::unique_ptr<FileLock> FileLock::try_take(const std::filesystem::path& path,
                                             std::string& holder) {
  for (;;) {
    FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (file < 0) failure("cannot create {}: {}", path.string(), std::strerror(errno));
    if (::flock(file, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) {
        holder = read_holder(file);
        return nullptr;
      }
      log_warning("cannot lock {} ({}): a second process would not be detected", path.string(),
                  std::strerror(errno));
    } else if (!still_there(file, path)) {
      continue;
    }
    // Without the text, others only do not learn who holds the lock.
    const std::string text = own_name() + "\n";
    if (::ftruncate(file, 0) == 0) (void)!::pwrite(file, text.data(), text.size(), 0);
    return std::unique_ptr<FileLock>(new FileLock(path, std::move(file), true));
  }
}

std::unique_ptr<FileLock> FileLock::inherited(const std::filesystem::path& path, int descriptor) {
  if (descriptor < 0 || !still_there(descriptor, path)) return nullptr;
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  return std::unique_ptr<FileLock>(new FileLock(path, FileDescriptor(descriptor), false));
}

FileLock::~FileLock() {
  // Not the file of another holder, if the directory was replaced.
  if (own_ && still_there(descriptor_, path_)) ::unlink(path_.c_str());
}

int FileLock::pass_on() const {
  ::fcntl(descriptor_, F_SETFD, 0);
  return descriptor_;
}

}  // namespace kintsugi
