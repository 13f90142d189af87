#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/tokenizers/added_tokens.h"
#include "data/tokenizers/bpe.h"
#include "data/tokenizers/normalizer.h"
#include "data/tokenizers/pre_tokenizer.h"
#include "data/tokenizers/tokenizer.h"

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
  struct Strip {
    std::string content;
    std::size_t front = 0, back = 0;
  };
  void add(const nlohmann::ordered_json& json, bool& fused);
  static void strip(const Strip& rule, std::string& text, std::size_t begin);

  bool byte_level_ = false, byte_fallback_ = false;
  std::vector<std::pair<std::string, std::string>> replacements_;
  std::vector<Strip> strips_;        // of the whole text
  std::vector<Strip> token_strips_;  // of each token
  std::string spaces_dropped_;  // Metaspace: replacement of a space, removed from the first token
};

// The content of a tokenizer.json.
struct BpeDefinition {
  std::string json;                // as it was read
  TokenizerCompanions companions;  // other files of its directory
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::string fingerprint = {};

  std::shared_ptr<const BpeModel> model = {};
  TokenDecoder decoder = {};
  AddedTokens raw_tokens = {};         // extracted from the original text
  AddedTokens normalized_tokens = {};  // extracted from the normalized text

  struct Token {
    std::string name, bytes;  // as in the file; the text it stands for
    bool present = false, added = false, special = false;
  };
  std::vector<Token> tokens = {};  // by id
  std::unordered_map<std::string, std::int32_t> ids = {};
  std::optional<std::int32_t> end_of_document = {}, begin_of_document = {};
};

// UserErrors name the entry in the file, but not the file.
BpeDefinition read_tokenizer_json(const std::string& json, TokenizerCompanions companions);

// Byte-pair encoding with Hugging Face's tokenizer.json.
class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(std::shared_ptr<const BpeDefinition> definition);

  std::unique_ptr<Tokenizer> clone() const override {
    return std::make_unique<BpeTokenizer>(definition_);
  }
  std::string description() const override;
  std::int64_t vocab_size() const override {
    return static_cast<std::int64_t>(definition_->tokens.size());
  }
  std::optional<std::int32_t> end_of_document() const override {
    return definition_->end_of_document;
  }
  std::optional<std::int32_t> token_id(std::string_view token) const override;
  void encode(std::string_view text, std::vector<std::int32_t>& ids,
              SpecialTokens special) override;
  void decode(std::span<const std::int32_t> ids, std::string& text,
              SpecialTokens special) const override;
  std::int64_t bytes_of(std::int32_t id) const override;
  std::vector<File> files(std::int64_t max_positions) const override;
  std::string fingerprint() const override { return definition_->fingerprint; }

 private:
  const BpeDefinition::Token& token(std::int32_t id) const;

  std::shared_ptr<const BpeDefinition> definition_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  BpeEncoder encoder_;
};

}  // namespace kintsugi
