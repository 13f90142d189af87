#include "data/stores/output_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/log.h"
#include "data/stores/store_info.h"

namespace kintsugi {
namespace {

// Whether the path still refers to the open file: the previous holder may have removed it.
bool still_there(int descriptor, const std::filesystem::path& path) {
  struct stat open {
  }, named{};
  return ::fstat(descriptor, &open) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open.st_ino == named.st_ino && open.st_dev == named.st_dev;
}

}  // namespace

OutputLock::OutputLock(const std::filesystem::path& prefix) : path_(with_ending(prefix, ".lock")) {
  while (true) {
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor_ < 0) failure("cannot create {}: {}", path_.string(), std::strerror(errno));
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) {
        ::close(descriptor_);
        user_error("another process is writing {}: wait for it or choose another --output",
                   prefix.string());
      }
      log_warning(
          "cannot lock {} ({}): a second process writing the same output would not be detected",
          path_.string(), std::strerror(errno));
      return;
    }
    if (still_there(descriptor_, path_)) return;
    ::close(descriptor_);
  }
}

OutputLock::~OutputLock() {
  ::unlink(path_.c_str());
  ::close(descriptor_);
}

}  // namespace kintsugi
