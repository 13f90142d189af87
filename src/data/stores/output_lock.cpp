#include "data/stores/output_lock.h"

#include <string>

#include "core/error.h"
#include "data/stores/store_info.h"

namespace kintsugi {

OutputLock::OutputLock(const std::filesystem::path& prefix) {
  std::string holder;
  lock_ = FileLock::try_take(with_ending(prefix, ".lock"), holder);
  if (!lock_)
    user_error("another process is writing {} ({}): wait for it or choose another --output",
               prefix.string(), holder);
}

}  // namespace kintsugi
