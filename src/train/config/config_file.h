#pragma once

#include <filesystem>

#include "train/config/config.h"

namespace kintsugi {

// Whether run.notify has a command or an address: these may contain a secret.
bool has_secrets(const RunConfig& config);

// Writes config.yaml of a run; with secrets only its owner may read it.
void write_config_file(const std::filesystem::path& path, const RunConfig& config);

}  // namespace kintsugi
