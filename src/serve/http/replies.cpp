#include "serve/http/replies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

// Whether more bytes can complete these, of which at least one, to a character.
bool begins_character(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char first = at(0);
  const std::size_t length = first < 0xC2 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (length == 1 || first > 0xF4 || bytes.size() >= length) return false;
  if (bytes.size() == 1) return true;
  // No overlong forms, no surrogates, nothing above U+10FFFF.
  const unsigned char low = first == 0xE0   ? 0xA0
                            : first == 0xF0 ? 0x90
                                            : 0x80,
                      high = first == 0xED   ? 0x9F
                             : first == 0xF4 ? 0x8F
                                             : 0xBF;
  if (at(1) < low || at(1) > high) return false;
  return bytes.size() == 2 || (at(2) & 0xC0) == 0x80;
}

// JSON has no infinity. OpenAI's API writes this for a token without any probability.
double json_logprob(double value) { return std::isfinite(value) ? value : -9999.0; }

// The most likely tokens, and the token itself.
std::vector<TokenLogprob> alternatives_of(const SampledToken& token, std::int64_t top) {
  std::vector<TokenLogprob> list(
      token.top.begin(), token.top.begin() + std::min<std::int64_t>(top, std::ssize(token.top)));
  const bool listed = std::any_of(list.begin(), list.end(),
                                  [&](const TokenLogprob& one) { return one.id == token.id; });
  if (!listed && token.logprob) list.push_back({token.id, *token.logprob});
  return list;
}

OrderedJson bytes_of(std::string_view text) {
  OrderedJson list = OrderedJson::array();
  for (const char c : text) list.push_back(static_cast<unsigned char>(c));
  return list;
}

}  // namespace

void CharacterCount::add(std::string_view bytes) {
  for (const char c : bytes) {
    const std::string longer = begun_ + c;
    if (begins_character(longer)) {
      begun_ = longer;
      continue;
    }
    const bool completes = utf8_character_length(longer) == longer.size();
    if (!completes && !begun_.empty()) ++whole_;  // what was begun stays incomplete
    const std::string alone(1, c);
    const bool begins = !completes && begins_character(alone);
    begun_ = begins ? alone : "";
    if (!begins) ++whole_;
  }
}

std::int64_t CharacterCount::index_of(std::string_view bytes) const {
  if (begun_.empty() || bytes.empty()) return whole_;
  const std::string longer = begun_ + bytes.front();
  const bool continues = begins_character(longer) || utf8_character_length(longer) == longer.size();
  return continues ? whole_ : whole_ + 1;
}

TokenTexts::TokenTexts(const Tokenizer* tokenizer, std::span<const std::int32_t> before)
    : output_(tokenizer, before) {}

TokenTexts::Entry TokenTexts::add(std::int32_t id) {
  Entry entry{output_.add(id)};
  entry.offset = characters_.index_of(entry.bytes);
  characters_.add(entry.bytes);
  return entry;
}

std::string TokenTexts::alternative(std::int32_t id) const {
  TextOutput copy = output_;
  return copy.add(id);
}

std::string json_text(std::string_view bytes) {
  if (valid_utf8_prefix(bytes) == bytes.size()) return std::string(bytes);
  std::string text = "bytes:";
  for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return text;
}

std::int64_t count_characters(std::string_view text) {
  const std::string shown = replace_invalid_utf8(text);
  return std::count_if(shown.begin(), shown.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

void CompletionLogprobs::add_plain(std::string_view text, std::int64_t offset) {
  tokens_.push_back(json_text(text));
  values_.push_back(nullptr);
  alternatives_.push_back(nullptr);
  offsets_.push_back(offset);
}

void CompletionLogprobs::add(const SampledToken& token, TokenTexts& texts) {
  OrderedJson named = OrderedJson::object();
  // Of tokens with the same text, the most likely one.
  for (const TokenLogprob& one : alternatives_of(token, top_))
    named.emplace(json_text(texts.alternative(one.id)), json_logprob(one.logprob));
  const TokenTexts::Entry entry = texts.add(token.id);
  if (!token.logprob) return add_plain(entry.bytes, entry.offset);
  tokens_.push_back(json_text(entry.bytes));
  values_.push_back(json_logprob(*token.logprob));
  alternatives_.push_back(std::move(named));
  offsets_.push_back(entry.offset);
}

OrderedJson CompletionLogprobs::json() const {
  return {{"tokens", tokens_},
          {"token_logprobs", values_},
          {"top_logprobs", alternatives_},
          {"text_offset", offsets_}};
}

OrderedJson chat_logprob(const SampledToken& token, std::int64_t top, TokenTexts& texts) {
  const auto entry = [&](std::string_view bytes, double logprob) {
    return OrderedJson{{"token", json_text(bytes)},
                       {"logprob", json_logprob(logprob)},
                       {"bytes", bytes_of(bytes)}};
  };
  OrderedJson list = OrderedJson::array();
  for (std::int64_t i = 0; i < std::min<std::int64_t>(top, std::ssize(token.top)); ++i) {
    const TokenLogprob& one = token.top[static_cast<std::size_t>(i)];
    list.push_back(entry(texts.alternative(one.id), one.logprob));
  }
  OrderedJson result = entry(texts.add(token.id).bytes, token.logprob.value_or(0));
  result["top_logprobs"] = std::move(list);
  return result;
}

OrderedJson choice_json(std::size_t index, const char* key, OrderedJson content,
                        OrderedJson logprobs, std::optional<FinishReason> finish) {
  return {{"index", index},
          {key, std::move(content)},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", finish ? OrderedJson(to_string(*finish)) : OrderedJson(nullptr)}};
}

OrderedJson usage_json(const TokenUsage& usage) {
  return {{"prompt_tokens", usage.prompt},
          {"completion_tokens", usage.completion},
          {"total_tokens", usage.prompt + usage.completion}};
}

OrderedJson reply_json(const ReplyHead& head, const char* object, OrderedJson choices) {
  return {{"id", head.id},
          {"object", object},
          {"created", head.created},
          {"model", head.model},
          {"choices", std::move(choices)}};
}

std::string json_line(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string event_text(const OrderedJson& json) { return "data: " + json_line(json) + "\n\n"; }

}  // namespace kintsugi
