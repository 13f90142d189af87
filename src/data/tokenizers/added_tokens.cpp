#include "data/tokenizers/added_tokens.h"

#include <algorithm>

#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

unsigned first_byte(std::string_view text) { return static_cast<unsigned char>(text[0]); }

std::size_t pair_of(std::string_view text, std::size_t at) {
  return static_cast<std::size_t>(static_cast<unsigned char>(text[at])) << 8 |
         static_cast<unsigned char>(text[at + 1]);
}

std::uint8_t class_of(std::string_view text, std::size_t begin, std::size_t& length) {
  return length == 0 ? 0 : UnicodeClasses::get().of(utf8_decode(text, begin, length));
}

// The class of the character that ends at `end`; 0 if it is invalid UTF-8. Sets its length.
std::uint8_t class_before(std::string_view text, std::size_t end, std::size_t& length) {
  length = utf8_last_character_length(text.substr(0, end));
  return class_of(text, end - length, length);
}

std::uint8_t class_after(std::string_view text, std::size_t begin, std::size_t& length) {
  length = utf8_character_length(text.substr(begin));
  return class_of(text, begin, length);
}

}  // namespace

AddedTokens::AddedTokens(std::vector<Token> tokens) : tokens_(std::move(tokens)), pairs_(1 << 16) {
  std::erase_if(tokens_, [](const Token& token) { return token.content.empty(); });
  // Of two tokens with the same content, the later one counts.
  std::reverse(tokens_.begin(), tokens_.end());
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const Token& a, const Token& b) {
    const unsigned first_a = first_byte(a.content), first_b = first_byte(b.content);
    return first_a != first_b ? first_a < first_b : a.content.size() > b.content.size();
  });
  for (const Token& token : tokens_) {
    ++begin_[first_byte(token.content) + 1];
    all_special_ = all_special_ && token.special;
    if (token.content.size() > 1)
      pairs_[pair_of(token.content, 0)] = true;
    else
      for (std::size_t second = 0; second < 256; ++second)
        pairs_[first_byte(token.content) << 8 | second] = true;
  }
  for (std::size_t byte = 0; byte < 256; ++byte) begin_[byte + 1] += begin_[byte];
}

bool AddedTokens::find(std::string_view text, std::size_t from, Match& match) const {
  for (std::size_t at = from; at < text.size(); ++at) {
    if (at + 1 < text.size() && !pairs_[pair_of(text, at)]) continue;
    const unsigned first = first_byte(text.substr(at));
    for (std::uint32_t i = begin_[first]; i < begin_[first + 1]; ++i)
      if (text.substr(at).starts_with(tokens_[i].content)) {
        const std::size_t end = at + tokens_[i].content.size();
        match = {&tokens_[i], at, end, end};
        return true;
      }
  }
  return false;
}

bool AddedTokens::accept(std::string_view text, bool honour_special, std::size_t done,
                         Match& match) const {
  const Token& token = *match.token;
  if (token.special && !honour_special) return false;
  std::size_t length;
  if (token.single_word) {
    if (match.begin > 0 && (class_before(text, match.begin, length) & UnicodeClasses::Word) != 0)
      return false;
    if (match.end < text.size() &&
        (class_after(text, match.end, length) & UnicodeClasses::Word) != 0)
      return false;
  }
  if (token.strip_left)
    while (match.begin > done &&
           (class_before(text, match.begin, length) & UnicodeClasses::Space) != 0)
      match.begin -= length;
  if (token.strip_right)
    while (match.end < text.size() &&
           (class_after(text, match.end, length) & UnicodeClasses::Space) != 0)
      match.end += length;
  // The previous token may already have taken this white space.
  match.begin = std::max(match.begin, done);
  match.end = std::max(match.end, match.begin);
  return true;
}

}  // namespace kintsugi
