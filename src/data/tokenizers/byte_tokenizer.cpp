#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/tokenizer_formats.h"

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;

class ByteTokenizer : public Tokenizer {
 public:
  explicit ByteTokenizer(TokenizerCompanions companions) : companions_(std::move(companions)) {}
  std::unique_ptr<Tokenizer> clone() const override {
    return std::make_unique<ByteTokenizer>(companions_);
  }
  std::string description() const override { return "bytes, 256 tokens"; }
  std::int64_t vocab_size() const override { return 256; }
  std::optional<std::int32_t> end_of_document() const override { return std::nullopt; }
  std::optional<std::int32_t> token_id(std::string_view token) const override {
    const std::optional<std::string> bytes = from_byte_alphabet(token);
    if (!bytes || bytes->size() != 1) return std::nullopt;
    return static_cast<unsigned char>((*bytes)[0]);
  }
  void encode(std::string_view text, std::vector<std::int32_t>& ids, SpecialTokens) override {
    const std::size_t before = ids.size();
    ids.resize(before + text.size());
    for (std::size_t i = 0; i < text.size(); ++i)
      ids[before + i] = static_cast<unsigned char>(text[i]);
  }
  void decode(std::span<const std::int32_t> ids, std::string& text, SpecialTokens) const override {
    for (const std::int32_t id : ids) {
      check(id);
      text += static_cast<char>(id);
    }
  }
  std::int64_t bytes_of(std::int32_t id) const override {
    check(id);
    return 1;
  }
  std::vector<File> files(std::int64_t max_positions) const override {
    return companions_.with({"tokenizer.json", byte_tokenizer_json()},
                            byte_tokenizer_config_json(max_positions));
  }
  std::string fingerprint() const override { return "bytes"; }

 private:
  static void check(std::int32_t id) {
    if (id < 0 || id > 255)
      user_error("token id {} is out of range: the vocabulary has 256 tokens", id);
  }

  TokenizerCompanions companions_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer(TokenizerCompanions companions) {
  return std::make_unique<ByteTokenizer>(std::move(companions));
}

Json byte_level_json(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json special_token_json(std::size_t id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

Json bpe_model_json(Json vocabulary, Json merges) {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(merges)}};
}

std::string byte_tokenizer_json() {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[to_byte_alphabet(std::string(1, static_cast<char>(byte)))] = byte;
  return Json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", Json::array()},
              {"normalizer", nullptr},
              {"pre_tokenizer", byte_level_json(false)},
              {"post_processor", nullptr},
              {"decoder", byte_level_json(false)},
              {"model", bpe_model_json(vocabulary, Json::array())}}
             .dump(1) +
         "\n";
}

std::string byte_tokenizer_config_json(std::int64_t max_positions) {
  return Json{{"tokenizer_class", "PreTrainedTokenizerFast"},
              {"model_max_length", max_positions},
              {"clean_up_tokenization_spaces", false}}
             .dump(2) +
         "\n";
}

bool is_byte_tokenizer(const std::string& tokenizer_json) {
  return tokenizer_json == byte_tokenizer_json();
}

}  // namespace kintsugi
