#include <sentencepiece_processor.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/hash.h"
#include "data/tokenizers/added_tokens.h"
#include "data/tokenizers/tokenizer_formats.h"
#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

// Control symbols, as tokens that may be extracted from a text.
AddedTokens control_tokens(const sentencepiece::SentencePieceProcessor& processor) {
  std::vector<AddedTokens::Token> tokens;
  for (int id = 0; id < processor.GetPieceSize(); ++id)
    if (processor.IsControl(id))
      tokens.push_back({.content = processor.IdToPiece(id), .id = id, .special = true});
  return AddedTokens(std::move(tokens));
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(
      std::shared_ptr<const sentencepiece::SentencePieceProcessor> processor, std::string model,
      TokenizerCompanions companions)
      : processor_(std::move(processor)),
        model_(std::make_shared<std::string>(std::move(model))),
        companions_(std::move(companions)),
        controls_(control_tokens(*processor_)) {}

  std::unique_ptr<Tokenizer> clone() const override {
    return std::make_unique<SentencePieceTokenizer>(*this);
  }

  std::string description() const override {
    return fmt::format("SentencePiece, {} tokens", vocab_size());
  }
  std::int64_t vocab_size() const override { return processor_->GetPieceSize(); }
  std::optional<std::int32_t> end_of_document() const override {
    const int id = processor_->eos_id();
    return id < 0 ? std::nullopt : std::optional<std::int32_t>(id);
  }
  std::optional<std::int32_t> token_id(std::string_view token) const override {
    const std::string name(token);
    const int id = processor_->PieceToId(name);
    if (id < 0 || id >= vocab_size() || processor_->IdToPiece(id) != name) return std::nullopt;
    return id;
  }

  void encode(std::string_view text, std::vector<std::int32_t>& ids,
              SpecialTokens special) override {
    controls_.split(text, special == SpecialTokens::Honoured,
                    [&](std::string_view segment, std::int32_t id) {
                      if (id >= 0) return ids.push_back(id);
                      std::vector<int> found;
                      check(processor_->Encode({segment.data(), segment.size()}, &found));
                      ids.insert(ids.end(), found.begin(), found.end());
                    });
  }

  void decode(std::span<const std::int32_t> ids, std::string& text,
              SpecialTokens special) const override {
    std::vector<int> pending;
    const auto flush = [&] {
      std::string decoded;
      if (!pending.empty()) check(processor_->Decode(pending, &decoded));
      text += decoded;
      pending.clear();
    };
    for (const std::int32_t id : ids) {
      check_id(id);
      if (!processor_->IsControl(id)) {
        pending.push_back(id);
      } else if (special == SpecialTokens::Honoured) {
        flush();
        text += processor_->IdToPiece(id);
      }
    }
    flush();
  }

  std::int64_t bytes_of(std::int32_t id) const override {
    check_id(id);
    if (processor_->IsControl(id) || processor_->IsUnknown(id)) return 0;
    if (processor_->IsByte(id)) return 1;
    // U+2581 (three bytes) stands for a space.
    const std::string& piece = processor_->IdToPiece(id);
    auto bytes = static_cast<std::int64_t>(piece.size());
    for (std::size_t at = 0; (at = piece.find("▁", at)) != std::string::npos; at += 3) bytes -= 2;
    return bytes;
  }

  std::vector<File> files(std::int64_t max_positions) const override {
    nlohmann::ordered_json config = {{"tokenizer_class", "LlamaTokenizer"},
                                     {"model_max_length", max_positions},
                                     {"clean_up_tokenization_spaces", false},
                                     {"legacy", false},
                                     {"add_bos_token", false},
                                     {"add_eos_token", false}};
    const auto name = [&](const char* key, int id) {
      if (id >= 0) config[key] = processor_->IdToPiece(id);
    };
    name("bos_token", processor_->bos_id());
    name("eos_token", processor_->eos_id());
    name("unk_token", processor_->unk_id());
    name("pad_token", processor_->pad_id());
    return companions_.with({"tokenizer.model", *model_}, config.dump(2) + "\n");
  }

  std::string fingerprint() const override { return "sentencepiece-" + hex64(hash64(*model_)); }

 private:
  static void check(const sentencepiece::util::Status& status) {
    if (!status.ok()) failure("SentencePiece: {}", status.ToString());
  }
  void check_id(std::int32_t id) const {
    if (id < 0 || id >= vocab_size())
      user_error("token id {} is out of range: the vocabulary has {} tokens", id, vocab_size());
  }

  std::shared_ptr<const sentencepiece::SentencePieceProcessor> processor_;
  std::shared_ptr<const std::string> model_;
  TokenizerCompanions companions_;
  AddedTokens controls_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& model,
                                                        TokenizerCompanions companions) {
  auto processor = std::make_shared<sentencepiece::SentencePieceProcessor>();
  const bool loaded = [&] {
    try {
      return processor->LoadFromSerializedProto({model.data(), model.size()}).ok();
    } catch (const std::exception&) {  // thrown by its trie for pieces that it cannot store
      return false;
    }
  }();
  if (!loaded || processor->GetPieceSize() <= 0) user_error("not a SentencePiece model");
  for (int id = 0; id < processor->GetPieceSize(); ++id) {
    const std::string& piece = processor->IdToPiece(id);
    if (valid_utf8_prefix(piece) != piece.size())
      user_error("its piece {} is not UTF-8: the file is damaged", id);
  }
  return std::make_unique<SentencePieceTokenizer>(std::move(processor), model,
                                                  std::move(companions));
}

}  // namespace kintsugi
