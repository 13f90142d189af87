#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer_training/bpe_trainer.h"
#include "data/tokenizers/tokenizer.h"

namespace kintsugi {

// The tokenizer.json and tokenizer_config.json of a trained vocabulary for Hugging Face. `family`
// names the pre-tokenizer (and normalizer) of the training; `end_of_document` is one of the special
// tokens.
std::vector<Tokenizer::File> trained_tokenizer_files(const TrainedBpe& bpe, std::string_view family,
                                                     const std::string& end_of_document);

}  // namespace kintsugi
