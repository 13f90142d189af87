#pragma once

#include "data/tokenizers/tokenizer.h"

namespace kintsugi {

// Whether two tokenizers encode a sample text in the same way. Fingerprints are not compared: they
// also differ between file formats of the same tokenizer.
bool gives_same_ids(const Tokenizer& a, const Tokenizer& b);

}  // namespace kintsugi
