#include "train/new_tokens.h"

#include <algorithm>

#include "core/error.h"
#include "data/tokenizers/unicode.h"
#include "model/config.h"

namespace kintsugi {
namespace {

// The text of a token inside a text. Some tokenizers drop the space of the first token, so it is
// decoded twice and the second one is taken.
std::string text_inside(const Tokenizer& tokenizer, std::int32_t id) {
  if (id >= tokenizer.vocab_size() || tokenizer.bytes_of(id) == 0) return "";
  std::string once, twice;
  tokenizer.decode(std::vector{id}, once, SpecialTokens::AsText);
  tokenizer.decode(std::vector{id, id}, twice, SpecialTokens::AsText);
  return twice.starts_with(once) ? twice.substr(once.size()) : once;
}

bool encodes_exactly(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids,
                     const std::string& text) {
  std::string decoded;
  tokenizer.decode(ids, decoded, SpecialTokens::AsText);
  return decoded == text;
}

// Whether the text says what the token means: U+FFFD replaces bytes that cannot be decoded alone.
bool readable(const std::string& text) {
  return !text.empty() && text.find("\uFFFD") == std::string::npos;
}

std::unique_ptr<Tokenizer> old_tokenizer(const std::filesystem::path& directory) {
  try {
    return load_tokenizer(model_directory(directory).string());
  } catch (const UserError& error) {
    user_error(
        "model.new_tokens is subtokens, but model.init {} has no tokenizer that can be read ({}): "
        "copy its tokenizer there, or use mean",
        directory.string(), error.what());
  }
}

}  // namespace

SubtokenRows subtokens_of_new_rows(const std::filesystem::path& directory, std::int64_t rows,
                                   std::int64_t vocab_size, const Tokenizer& tokenizer) {
  const std::unique_ptr<Tokenizer> old = old_tokenizer(directory);
  SubtokenRows all;
  for (std::int64_t row = rows; row < vocab_size; ++row) {
    std::vector<std::int32_t>& ids = all.emplace_back();
    const std::string text = text_inside(tokenizer, static_cast<std::int32_t>(row));
    if (!readable(text)) continue;
    old->encode(text, ids, SpecialTokens::AsText);
    const bool is_text = valid_utf8_prefix(text) == text.size();
    const bool has_rows =
        std::all_of(ids.begin(), ids.end(), [&](std::int32_t id) { return id >= 0 && id < rows; });
    if (!has_rows || (!is_text && !encodes_exactly(*old, ids, text))) ids.clear();
  }
  return all;
}

}  // namespace kintsugi
