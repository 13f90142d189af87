#pragma once

#include <vector>

#include "core/units.h"

namespace kintsugi {

// Keys of other trainers (Hugging Face, Megatron-LM, DeepSpeed, NeMo, torchtitan) and ours for the
// same thing, with the section.
std::vector<Synonym> run_config_synonyms();

}  // namespace kintsugi
