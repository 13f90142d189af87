#pragma once

#include "core/yaml_document.h"
#include "train/config/config.h"

namespace kintsugi {

// What no single key can know: keys that disagree with each other are a UserError that names one of
// them, where it stands, and the remedy.
void check_run_config(const YamlDocument& document, const RunConfig& config);

}  // namespace kintsugi
