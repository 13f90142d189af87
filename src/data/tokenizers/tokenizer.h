#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// Whether the text of a special token ("<|endoftext|>") is encoded as that token or as plain text.
// A corpus may contain anything, so the default is AsText.
enum class SpecialTokens : std::uint8_t { AsText, Honoured };

// Converts text to token ids and back. Encoding uses a cache, so each thread needs its own object;
// clone() shares everything but the cache.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::unique_ptr<Tokenizer> clone() const = 0;

  virtual std::string description() const = 0;  // "byte-level BPE, 50257 tokens"
  virtual std::int64_t vocab_size() const = 0;  // the largest id + 1
  virtual std::optional<std::int32_t> end_of_document() const = 0;
  virtual std::optional<std::int32_t> token_id(std::string_view token) const = 0;

  // Appends the ids of `text`. Any bytes are allowed, including invalid UTF-8. No tokens are added
  // at the start or the end.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids,
                      SpecialTokens special = SpecialTokens::AsText) = 0;
  // Appends the bytes of the ids. Special tokens are written (Honoured) or omitted (AsText).
  // UserError for an id outside the vocabulary.
  virtual void decode(std::span<const std::int32_t> ids, std::string& text,
                      SpecialTokens special = SpecialTokens::Honoured) const = 0;
  // The bytes of text of an id; 0 for special tokens. Used for the loss per byte.
  virtual std::int64_t bytes_of(std::int32_t id) const = 0;

  // The tokenizer files for a Hugging Face model directory: tokenizer.json, tokenizer_config.json
  // and the other files that were loaded with them, unchanged. A missing tokenizer_config.json is
  // generated with max_positions as model_max_length.
  struct File {
    std::string name, content;
    bool operator==(const File&) const = default;
  };
  virtual std::vector<File> files(std::int64_t max_positions) const = 0;

  // A hash of everything that determines the ids; stored in PREFIX.json of token stores.
  virtual std::string fingerprint() const = 0;
};

// The other files in the directory of a tokenizer, unchanged.
struct TokenizerCompanions {
  std::optional<std::string> config;         // tokenizer_config.json
  std::vector<Tokenizer::File> others = {};  // special tokens, chat template, …

  // All files of the tokenizer; default_config is used if there is no tokenizer_config.json.
  std::vector<Tokenizer::File> with(Tokenizer::File own, std::string default_config) const;
};

// Loads a tokenizer. `name` is one of:
//   bytes                           raw bytes, id = byte value
//   tokenizer.json                  or a directory with one: byte-pair encoding
//   tokenizer.model                 or a directory with one: SentencePiece
//   RUN_DIR                         the tokenizer of the latest checkpoint of a run
//   ranks.tiktoken:FAMILY           a rank file and the family of its pre-tokenizer and special
//                                   tokens: gpt2, llama3, cl100k, olmo2, qwen, o200k, …
//                                   (pre_tokenizer.h). These names need no family:
//                                   cl100k_base.tiktoken, o200k_base.tiktoken, qwen.tiktoken, and
//                                   a tokenizer.model with ranks (Llama 3).
// A UserError names the file and the position of an error.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& name);

// Whether two tokenizers encode a sample text in the same way. Fingerprints are not compared: they
// also differ between file formats of the same tokenizer.
bool gives_same_ids(const Tokenizer& a, const Tokenizer& b);

}  // namespace kintsugi
