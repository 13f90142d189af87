#include "train/config/config_file.h"

#include <algorithm>

#include "core/new_file.h"

namespace kintsugi {

bool has_secrets(const RunConfig& config) {
  const auto has_some = [](const StageConfig& stage) {
    return stage.run.notify.command || stage.run.notify.webhook;
  };
  return has_some(config) || std::any_of(config.stages.begin(), config.stages.end(), has_some);
}

void write_config_file(const std::filesystem::path& path, const RunConfig& config) {
  if (has_secrets(config))
    write_private_file(path, to_yaml(config));
  else
    write_file_atomically(path, to_yaml(config));
}

}  // namespace kintsugi
