#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "model/initialize.h"

namespace kintsugi {

// For each new row of a vocabulary that grows from `rows` to `vocab_size` tokens: the ids that the
// tokenizer in `directory` gives for the text of the new token. Empty for tokens without text
// (special tokens, rows beyond the tokenizer), and for bytes that the old tokenizer cannot encode.
// UserError if the directory has no tokenizer that can be read.
SubtokenRows subtokens_of_new_rows(const std::filesystem::path& directory, std::int64_t rows,
                                   std::int64_t vocab_size, const Tokenizer& tokenizer);

}  // namespace kintsugi
