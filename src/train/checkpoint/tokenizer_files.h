#pragma once

#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizers/tokenizer.h"
#include "model/config.h"

namespace kintsugi {

// Returns the tokenizer's files for this model's directory, so that transformers' AutoTokenizer
// gives the ids that the model was trained with. The files are unchanged except for
// tokenizer_config.json, which is edited where transformers would otherwise use another tokenizer
// (rule in docs/data.md). `chat` is the format of the conversations that the model is trained on
// (nullptr: none): the files have its template, unless theirs is of this format.
std::vector<Tokenizer::File> tokenizer_files(const Tokenizer& tokenizer, const ModelConfig& model,
                                             const ChatFormat* chat = nullptr);

}  // namespace kintsugi
