// Replaces sentencepiece_tokenizer.cpp in a binary built without SentencePiece.
#include "core/error.h"
#include "data/tokenizers/tokenizer_formats.h"

namespace kintsugi {

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string&, TokenizerCompanions) {
  user_error(
      "this binary was built without SentencePiece: build it where the library is installed, or "
      "convert the model to tokenizer.json");
}

}  // namespace kintsugi
