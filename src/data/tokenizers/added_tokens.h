#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// Tokens that are extracted from a text before any other processing: the leftmost first, and of
// several at the same position the longest.
class AddedTokens {
 public:
  struct Token {
    std::string content;
    std::int32_t id = 0;
    bool special = false;
    bool single_word = false;                      // not next to a letter or digit
    bool strip_left = false, strip_right = false;  // also takes the white space on that side
  };

  AddedTokens() = default;
  explicit AddedTokens(std::vector<Token> tokens);

  // Calls visit(segment, id) for the whole text in order: tokens with their id, the text between
  // them with -1. Without honour_special, special tokens are text.
  template <class Visit>
  void split(std::string_view text, bool honour_special, Visit&& visit) const {
    std::size_t done = 0;
    Match match;
    if (!tokens_.empty() && (honour_special || !all_special_))
      for (std::size_t from = 0; find(text, from, match); from = match.next) {
        if (!accept(text, honour_special, done, match)) continue;
        if (done < match.begin) visit(text.substr(done, match.begin - done), -1);
        visit(text.substr(match.begin, match.end - match.begin), match.token->id);
        done = match.end;
      }
    if (done < text.size()) visit(text.substr(done), -1);
  }

 private:
  struct Match {
    const Token* token;
    std::size_t begin, end;
    std::size_t next;  // start of the search for the next match
  };
  bool find(std::string_view text, std::size_t from, Match& match) const;
  bool accept(std::string_view text, bool honour_special, std::size_t done, Match& match) const;

  std::vector<Token> tokens_;               // by first byte, then the longest first
  std::array<std::uint32_t, 257> begin_{};  // by first byte: index into tokens_
  std::vector<bool> pairs_;                 // whether a token starts with these two bytes
  bool all_special_ = true;
};

}  // namespace kintsugi
