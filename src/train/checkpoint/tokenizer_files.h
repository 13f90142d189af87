#pragma once

#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "model/config.h"

namespace kintsugi {

// The tokenizer's files as they belong beside this model, so that transformers' AutoTokenizer gives
// the ids that the model was trained with. Everything that was given is kept; tokenizer_config.json
// is changed where transformers would otherwise take another tokenizer (docs/data.md has the rule).
std::vector<Tokenizer::File> tokenizer_files(const Tokenizer& tokenizer, const ModelConfig& model);

}  // namespace kintsugi
