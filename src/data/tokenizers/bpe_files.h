#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer_training/bpe_trainer.h"
#include "data/tokenizers/tokenizer.h"

namespace kintsugi {

// tokenizer.json and tokenizer_config.json of a trained vocabulary, as Hugging Face reads them.
// `family` names the pre-tokenizer (and normalizer) it was trained with, `end_of_document` one of
// its special tokens.
std::vector<Tokenizer::File> trained_tokenizer_files(const TrainedBpe& bpe, std::string_view family,
                                                     const std::string& end_of_document);

}  // namespace kintsugi
