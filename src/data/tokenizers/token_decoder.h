#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kintsugi {

// The "decoder" of a tokenizer.json: converts tokens of the vocabulary to text.
class TokenDecoder {
 public:
  static TokenDecoder of_json(std::string_view json);

  // The bytes of one token.
  std::string bytes_of(const std::string& token) const;
  // The bytes of the first token of a text, which may differ.
  std::string first_bytes_of(const std::string& token) const;
  bool first_differs() const { return !spaces_dropped_.empty(); }
  // Post-processes the decoded text that starts at `begin`.
  void finish(std::string& text, std::size_t begin) const;

 private:
  friend class TokenDecoderReader;
  struct Strip {
    std::string content;
    std::size_t front = 0, back = 0;
  };
  static void strip(const Strip& rule, std::string& text, std::size_t begin);

  bool byte_level_ = false, byte_fallback_ = false;
  std::vector<std::pair<std::string, std::string>> replacements_;
  std::vector<Strip> strips_;        // of the whole text
  std::vector<Strip> token_strips_;  // of each token
  std::string spaces_dropped_;  // Metaspace: replacement of a space, removed from the first token
};

}  // namespace kintsugi
