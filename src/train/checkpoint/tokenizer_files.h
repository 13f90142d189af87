#pragma once

#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "model/config.h"

namespace kintsugi {

// Returns the tokenizer's files for this model's directory, so that transformers' AutoTokenizer
// gives the ids that the model was trained with. The files are unchanged except for
// tokenizer_config.json, which is edited where transformers would otherwise use another tokenizer
// (rule in docs/data.md).
std::vector<Tokenizer::File> tokenizer_files(const Tokenizer& tokenizer, const ModelConfig& model);

}  // namespace kintsugi
