#pragma once

#include <memory>
#include <string>

#include "data/tokenizers/tokenizer.h"

namespace kintsugi {

// A SentencePiece model, run by the SentencePiece library. `model` is the content of the file;
// UserErrors do not name the file. Invalid UTF-8 becomes U+FFFD. If special tokens are honoured,
// the text on each side of one is encoded separately.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& model,
                                                        TokenizerCompanions companions = {});

}  // namespace kintsugi
