#pragma once

#include <vector>

#include "core/yaml_document.h"
#include "train/config/config.h"

namespace kintsugi {

// Names the stages that have no name.
void complete_stage_names(std::vector<StageConfig>& stages);
// Checks what complete stages must have in common, and carries over from stage to stage what has
// been trained: the positions.
void relate_stages(const YamlDocument& document, std::vector<StageConfig>& stages);

}  // namespace kintsugi
