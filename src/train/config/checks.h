#pragma once

#include <vector>

#include "core/units.h"
#include "core/yaml_document.h"
#include "train/config/config.h"

namespace kintsugi {

// Checks that the keys are consistent with each other. Throws a UserError that names the key, its
// line and the remedy.
void check_run_config(const YamlDocument& document, const std::string& prefix,
                      const StageConfig& config);

// Maps keys of other trainers (Hugging Face, Megatron-LM, DeepSpeed, NeMo, torchtitan) to our
// dotted keys.
std::vector<Synonym> run_config_synonyms();

}  // namespace kintsugi
