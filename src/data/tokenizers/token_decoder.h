#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kintsugi {

// The "decoder" of a tokenizer.json: what a token of the vocabulary stands for in a text.
class TokenDecoder {
 public:
  static TokenDecoder of_json(std::string_view json);

  // The bytes of one token.
  std::string bytes_of(const std::string& token) const;
  // The first token of a text, where that differs.
  std::string first_bytes_of(const std::string& token) const;
  bool first_differs() const { return !spaces_dropped_.empty(); }
  // What is done to the whole text that begins at `begin`.
  void finish(std::string& text, std::size_t begin) const;

 private:
  friend class TokenDecoderReader;
  struct Strip {
    std::string content;
    std::size_t front = 0, back = 0;
  };
  static void strip(const Strip& how, std::string& text, std::size_t begin);

  bool byte_level_ = false, byte_fallback_ = false;
  std::vector<std::pair<std::string, std::string>> replacements_;
  std::vector<Strip> strips_;        // of the whole text
  std::vector<Strip> token_strips_;  // of each token
  std::string spaces_dropped_;  // Metaspace: what stands for a space, dropped in the first token
};

}  // namespace kintsugi
