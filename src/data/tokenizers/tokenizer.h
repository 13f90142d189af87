#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// Whether the text of a special token ("<|endoftext|>") is that token or just text. A corpus may
// contain anything, so nothing is honoured unless asked for.
enum class SpecialTokens : std::uint8_t { AsText, Honoured };

// Text to token ids and back. Encoding keeps a cache, so an object serves one thread; clone()
// shares everything else.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::unique_ptr<Tokenizer> clone() const = 0;

  virtual std::string description() const = 0;  // "byte-level BPE, 50257 tokens"
  virtual std::int64_t vocab_size() const = 0;  // one more than the largest id
  virtual std::optional<std::int32_t> end_of_document() const = 0;
  virtual std::optional<std::int32_t> token_id(std::string_view token) const = 0;

  // Appends. Any bytes are legal, also ones that are no UTF-8. Nothing is added at the ends.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids,
                      SpecialTokens special = SpecialTokens::AsText) = 0;
  // Appends the bytes of the ids; an id outside the vocabulary is a UserError. Special tokens are
  // written out, or left out.
  virtual void decode(std::span<const std::int32_t> ids, std::string& text,
                      SpecialTokens special = SpecialTokens::Honoured) const = 0;
  // How many bytes of text an id stands for; 0 for special ones. Losses per byte come from this.
  virtual std::int64_t bytes_of(std::int32_t id) const = 0;

  // What a Hugging Face model directory holds for this tokenizer: tokenizer.json,
  // tokenizer_config.json and whatever else was found beside them, as it was read. What was not
  // given is made up, with max_positions as the longest text.
  struct File {
    std::string name, content;
    bool operator==(const File&) const = default;
  };
  virtual std::vector<File> files(std::int64_t max_positions) const = 0;

  // Of everything that decides the ids; stored with what was tokenized.
  virtual std::string fingerprint() const = 0;
};

// What was found beside a tokenizer's own file, as it was read.
struct TokenizerCompanions {
  std::optional<std::string> config;         // tokenizer_config.json
  std::vector<Tokenizer::File> others = {};  // special tokens, chat template, …

  // All files of the tokenizer; where no configuration was given, it is this one.
  std::vector<Tokenizer::File> with(Tokenizer::File own, std::string made_up_config) const;
};

// What `name` may be:
//   bytes                           raw bytes, id = value
//   tokenizer.json                  or a directory that holds one: byte-pair encodings
//   tokenizer.model                 or a directory that holds one: SentencePiece
//   ranks.tiktoken:FAMILY           a rank file and the family whose pre-tokenizer and special
//                                   tokens go with it: gpt2, llama3, cl100k, olmo2, qwen, o200k, …
//                                   (pre_tokenizer.h). Names that say it all need no family:
//                                   cl100k_base.tiktoken, o200k_base.tiktoken, qwen.tiktoken, and
//                                   a tokenizer.model that holds ranks, which is Llama 3's.
// Everything wrong with a file is a UserError that names it and the place.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& name);

}  // namespace kintsugi
