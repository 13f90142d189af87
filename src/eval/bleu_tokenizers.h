#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// The tokenizers of sacreBLEU. 13a is that of WMT (mteval-v13a), Intl that of mteval-v14.
enum class BleuTokenizer { V13a, Intl, Char, None };

BleuTokenizer parse_bleu_tokenizer(std::string_view name);  // UserError if unknown
std::string_view to_string(BleuTokenizer tokenizer);        // 13a, intl, char, none

std::vector<std::string> bleu_tokens(std::string_view text, BleuTokenizer tokenizer);

}  // namespace kintsugi
