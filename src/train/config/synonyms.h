#pragma once

#include <vector>

#include "core/units.h"

namespace kintsugi {

// Maps keys of other trainers (Hugging Face, Megatron-LM, DeepSpeed, NeMo, torchtitan) to our
// dotted keys.
std::vector<Synonym> run_config_synonyms();

}  // namespace kintsugi
