#include "data/tokenizers/bpe_tokenizer.h"

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace kintsugi {

BpeTokenizer::BpeTokenizer(std::shared_ptr<const BpeDefinition> definition)
    : definition_(std::move(definition)),
      normalizer_(definition_->normalizer),
      pre_tokenizer_(definition_->pre_tokenizer),
      encoder_(definition_->model) {}

std::unique_ptr<Tokenizer> BpeTokenizer::clone() const {
  return std::make_unique<BpeTokenizer>(definition_);
}

std::string BpeTokenizer::description() const {
  return fmt::format("{}BPE, {} tokens", pre_tokenizer_.byte_level() ? "byte-level " : "",
                     vocab_size());
}

std::int64_t BpeTokenizer::vocab_size() const {
  return static_cast<std::int64_t>(definition_->tokens.size());
}

std::optional<std::int32_t> BpeTokenizer::end_of_document() const {
  return definition_->end_of_document;
}

std::optional<std::int32_t> BpeTokenizer::token_id(std::string_view token) const {
  const auto found = definition_->ids.find(std::string(token));
  if (found == definition_->ids.end()) return std::nullopt;
  return found->second;
}

void BpeTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids,
                          SpecialTokens special) {
  const bool honour = special == SpecialTokens::Honoured;
  ids.reserve(ids.size() + text.size() / 4);
  const auto encode_plain = [&](std::string_view segment, bool at_start) {
    pre_tokenizer_.for_each_pre_token(
        segment, [&](std::string_view pre_token) { encoder_.encode(pre_token, ids); }, at_start);
  };
  definition_->raw_tokens.split(text, honour, [&](std::string_view segment, std::int32_t raw_id) {
    if (raw_id >= 0) return ids.push_back(raw_id);
    const bool at_start = segment.data() == text.data();
    const std::string_view normal = normalizer_.apply(segment);
    definition_->normalized_tokens.split(
        normal, honour, [&](std::string_view part, std::int32_t id) {
          if (id >= 0) return ids.push_back(id);
          encode_plain(part, at_start && part.data() == normal.data());
        });
  });
}

const BpeDefinition::Token& BpeTokenizer::token(std::int32_t id) const {
  if (id < 0 || id >= vocab_size())
    user_error("token id {} is out of range: the vocabulary has {} tokens", id, vocab_size());
  return definition_->tokens[static_cast<std::size_t>(id)];
}

void BpeTokenizer::decode(std::span<const std::int32_t> ids, std::string& text,
                          SpecialTokens special) const {
  const std::size_t begin = text.size();
  bool first = definition_->decoder.first_differs();
  for (const std::int32_t id : ids) {
    const BpeDefinition::Token& entry = token(id);
    if (entry.special && special == SpecialTokens::AsText) continue;
    if (first && !entry.added)
      text += definition_->decoder.first_bytes_of(entry.name);
    else
      text += entry.bytes;
    first = false;
  }
  definition_->decoder.finish(text, begin);
}

std::int64_t BpeTokenizer::bytes_of(std::int32_t id) const {
  const BpeDefinition::Token& entry = token(id);
  return entry.special ? 0 : static_cast<std::int64_t>(entry.bytes.size());
}

std::vector<Tokenizer::File> BpeTokenizer::files(std::int64_t max_positions) const {
  nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                   {"model_max_length", max_positions},
                                   {"clean_up_tokenization_spaces", false}};
  const auto name = [&](std::int32_t id) {
    return definition_->tokens[static_cast<std::size_t>(id)].name;
  };
  if (definition_->begin_of_document) config["bos_token"] = name(*definition_->begin_of_document);
  if (definition_->end_of_document) config["eos_token"] = name(*definition_->end_of_document);
  return definition_->companions.with({"tokenizer.json", definition_->json}, config.dump(2) + "\n");
}

std::string BpeTokenizer::fingerprint() const { return definition_->fingerprint; }

}  // namespace kintsugi
