#pragma once

#include <memory>
#include <string>

#include "data/tokenizers/tokenizer.h"

namespace kintsugi {

// A SentencePiece model, run by its own library. `model` is the content of the file; UserErrors do
// not name it. What is no UTF-8 becomes U+FFFD. Where special tokens are honoured, the text on each
// side of one is encoded by itself.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& model,
                                                        TokenizerCompanions companions = {});

}  // namespace kintsugi
