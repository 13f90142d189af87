#include "train/config/config_file.h"

#include <algorithm>

#include "core/new_file.h"

namespace kintsugi {

bool has_secrets(const RunConfig& config) {
  const NotifyConfig& notify = config.run.notify;
  return notify.command || notify.webhook ||
         std::any_of(config.stages.begin(), config.stages.end(), has_secrets);
}

void write_config_file(const std::filesystem::path& path, const RunConfig& config) {
  if (has_secrets(config))
    write_private_file(path, to_yaml(config));
  else
    write_file_atomically(path, to_yaml(config));
}

}  // namespace kintsugi
