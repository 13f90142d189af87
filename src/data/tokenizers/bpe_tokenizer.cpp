#include "data/tokenizers/bpe_tokenizer.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/tokenizers/byte_alphabet.h"

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  if (from.empty()) return;
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

// The byte of "<0x41>", or -1.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  int value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  return error == std::errc() && end == token.data() + 5 ? value : -1;
}

}  // namespace

class TokenDecoderReader {
 public:
  explicit TokenDecoderReader(TokenDecoder& result) : result_(result) {}

  void add(const Json& json) {
    if (json.is_null()) return;
    const std::string type = json.at("type").get<std::string>();
    if (type == "Sequence") {
      for (const Json& part : json.at("decoders")) add(part);
    } else if (type == "ByteLevel") {
      result_.byte_level_ = true;
    } else if (type == "ByteFallback") {
      result_.byte_fallback_ = true;
    } else if (type == "Fuse") {
      fused_ = true;
    } else if (type == "Replace") {
      result_.replacements_.emplace_back(json.at("pattern").at("String").get<std::string>(),
                                         json.at("content").get<std::string>());
    } else if (type == "Strip") {
      (fused_ ? result_.strips_ : result_.token_strips_)
          .push_back({json.at("content").get<std::string>(), json.at("start").get<std::size_t>(),
                      json.at("stop").get<std::size_t>()});
    } else if (type == "Metaspace") {
      const std::string replacement = json.value("replacement", "▁");
      const std::string scheme =
          json.value("prepend_scheme", json.value("add_prefix_space", true) ? "always" : "never");
      result_.replacements_.emplace_back(replacement, " ");
      if (scheme != "never") result_.spaces_dropped_ = replacement;
    } else {
      user_error(
          "decoder: the type {} is not supported (known: ByteLevel, Sequence, Replace, "
          "ByteFallback, Fuse, Strip, Metaspace)",
          type);
    }
  }

 private:
  TokenDecoder& result_;
  bool fused_ = false;
};

TokenDecoder TokenDecoder::of_json(std::string_view json) {
  TokenDecoder result;
  try {
    TokenDecoderReader(result).add(Json::parse(json));
  } catch (const Json::exception& error) {
    user_error("decoder: {}", error.what());
  }
  return result;
}

std::string TokenDecoder::bytes_of(const std::string& token) const {
  if (byte_level_) return from_byte_alphabet(token).value_or(token);
  if (byte_fallback_)
    if (const int byte = fallback_byte(token); byte >= 0)
      return std::string(1, static_cast<char>(byte));
  std::string text = token;
  for (const auto& [from, to] : replacements_) replace_all(text, from, to);
  for (const Strip& rule : token_strips_) strip(rule, text, 0);
  return text;
}

std::string TokenDecoder::first_bytes_of(const std::string& token) const {
  if (!first_differs()) return bytes_of(token);
  std::string text = token;
  replace_all(text, spaces_dropped_, "");
  return bytes_of(text);
}

void TokenDecoder::finish(std::string& text, std::size_t begin) const {
  for (const Strip& rule : strips_) strip(rule, text, begin);
}

void TokenDecoder::strip(const Strip& rule, std::string& text, std::size_t begin) {
  if (rule.content.empty()) return;
  std::size_t front = begin;
  for (std::size_t i = 0; i < rule.front; ++i) {
    if (!std::string_view(text).substr(front).starts_with(rule.content)) break;
    front += rule.content.size();
  }
  text.erase(begin, front - begin);
  for (std::size_t i = 0; i < rule.back; ++i) {
    if (!std::string_view(text).substr(begin).ends_with(rule.content)) break;
    text.resize(text.size() - rule.content.size());
  }
}

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
