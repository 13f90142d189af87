#include "core/run_directory.h"

#include "core/error.h"

namespace kintsugi {
namespace fs = std::filesystem;

fs::path resolve_run_directory(const fs::path& path,
                               const std::function<bool(const fs::path& directory)>& holds) {
  if (holds(path)) return path;
  const fs::path checkpoints = path / "checkpoints";
  for (const fs::path& latest : {checkpoints / "latest", path / "latest"})
    if (holds(latest)) return latest;
  std::error_code ignored;
  if (fs::is_directory(checkpoints, ignored) && !fs::exists(checkpoints / "latest", ignored))
    user_error("the run in {} has no checkpoint yet: {} is missing", path.string(),
               (checkpoints / "latest").string());
  return path;
}

}  // namespace kintsugi
