#include "data/chat/prompt_encoder.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace kintsugi {
namespace {

using Json = nlohmann::json;

constexpr int kDeepest = 64;  // levels of JSON

Json parse_object(const Tokenizer::File& file) {
  const Json::parser_callback_t keep = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kDeepest) user_error("{}: nested deeper than {} levels", file.name, kDeepest);
    // The vocabulary is large and not needed.
    return !(event == Json::parse_event_t::key && depth == 1 && parsed == "model");
  };
  try {
    Json json = Json::parse(file.content, keep);
    if (!json.is_object()) user_error("{}: not a JSON object", file.name);
    return json;
  } catch (const Json::exception& error) {
    user_error("{}: {}", file.name, error.what());
  }
}

const Json* find(const Json& json, const char* key) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(key);
  return found == json.end() ? nullptr : &*found;
}

std::string text_at(const Json& json, const char* key) {
  const Json* value = find(json, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

// "<s>" or {"content": "<s>", …}
std::string token_at(const Json& json, const char* key) {
  const Json* value = find(json, key);
  return value != nullptr && value->is_object() ? text_at(*value, "content") : text_at(json, key);
}

// A string, or a list of {"name", "template"}, of which transformers uses "default".
std::string template_at(const Json& config) {
  const Json* value = find(config, "chat_template");
  if (value == nullptr || !value->is_array()) return text_at(config, "chat_template");
  for (const Json& entry : *value)
    if (text_at(entry, "name") == "default") return text_at(entry, "template");
  return "";
}

// The special token that a post-processor puts before a text; empty: none.
std::string first_added(const Json& processor) {
  const std::string type = text_at(processor, "type");
  if (type == "Sequence") {
    if (const Json* list = find(processor, "processors"); list != nullptr && list->is_array())
      for (const Json& entry : *list)
        if (std::string token = first_added(entry); !token.empty()) return token;
    return "";
  }
  const Json* single = find(processor, "single");
  if (type != "TemplateProcessing" || single == nullptr || !single->is_array() || single->empty())
    return "";
  const Json* special = find(single->front(), "SpecialToken");
  return special == nullptr ? "" : text_at(*special, "id");
}

const Tokenizer::File* file_named(std::span<const Tokenizer::File> files, std::string_view name) {
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const Tokenizer::File& file) { return file.name == name; });
  return found == files.end() ? nullptr : &*found;
}

}  // namespace

PromptSettings read_prompt_settings(std::span<const Tokenizer::File> files) {
  PromptSettings settings;
  std::optional<bool> adds;
  if (const Tokenizer::File* file = file_named(files, "tokenizer_config.json")) {
    const Json config = parse_object(*file);
    settings.bos = token_at(config, "bos_token");
    settings.eos = token_at(config, "eos_token");
    settings.pad = token_at(config, "pad_token");
    settings.chat_template = template_at(config);
    if (const Json* value = find(config, "add_bos_token"); value != nullptr && value->is_boolean())
      adds = value->get<bool>();
  }
  if (const Tokenizer::File* file = file_named(files, "chat_template.jinja"))
    settings.chat_template = file->content;
  if (const Tokenizer::File* file = file_named(files, "tokenizer.json"); file != nullptr && !adds) {
    const Json json = parse_object(*file);
    const Json* processor = find(json, "post_processor");
    const std::string first = processor == nullptr ? "" : first_added(*processor);
    if (!first.empty()) settings.bos = first;
    adds = !first.empty();
  }
  settings.adds_bos = adds.value_or(false) && !settings.bos.empty();
  return settings;
}

BosChoice parse_bos_choice(std::string_view text) {
  if (text == "auto") return BosChoice::Auto;
  if (text == "yes") return BosChoice::Yes;
  if (text == "no") return BosChoice::No;
  user_error("--bos is '{}': use auto, yes or no", text);
}

PromptEncoder::PromptEncoder(Tokenizer& tokenizer, const PromptSettings& settings, BosChoice bos,
                             std::int64_t model_bos)
    : tokenizer_(tokenizer) {
  if (bos == BosChoice::No || (bos == BosChoice::Auto && !settings.adds_bos)) return;
  if (!settings.bos.empty()) {
    bos_ = tokenizer.token_id(settings.bos);
    if (!bos_)
      user_error("the tokenizer has no token '{}', which its files name as BOS: use --bos no",
                 settings.bos);
  } else if (model_bos >= 0) {
    bos_ = static_cast<std::int32_t>(model_bos);
  } else {
    user_error("neither the tokenizer nor config.json names a BOS token: use --bos no");
  }
}

std::vector<std::int32_t> PromptEncoder::with_bos(std::vector<std::int32_t> ids) const {
  if (bos_ && (ids.empty() || ids.front() != *bos_)) ids.insert(ids.begin(), *bos_);
  return ids;
}

bool PromptEncoder::has_special(const std::string& text) const {
  std::vector<std::int32_t> honoured, as_text;
  tokenizer_.encode(text, honoured, SpecialTokens::Honoured);
  tokenizer_.encode(text, as_text, SpecialTokens::AsText);
  return honoured != as_text;
}

std::vector<std::int32_t> PromptEncoder::encode(std::string_view text,
                                                SpecialTokens special) const {
  std::vector<std::int32_t> ids;
  tokenizer_.encode(text, ids, special);
  return with_bos(std::move(ids));
}

// As one text where possible: models were trained with tokens that cross the borders of pieces.
bool PromptEncoder::divides(std::span<const ChatText> pieces) const {
  return std::any_of(pieces.begin(), pieces.end(), [&](const ChatText& piece) {
    return piece.content && has_special(piece.text);
  });
}

std::vector<std::int32_t> PromptEncoder::encode(std::span<const ChatText> pieces,
                                                SpecialTokens special) const {
  if (special == SpecialTokens::Honoured || !divides(pieces))
    return encode(text_of(pieces), SpecialTokens::Honoured);
  std::vector<std::int32_t> ids;
  for (const ChatText& piece : pieces)
    tokenizer_.encode(piece.text, ids,
                      piece.content ? SpecialTokens::AsText : SpecialTokens::Honoured);
  return with_bos(std::move(ids));
}

// The byte of the text at which each token ends; empty if the tokens alone do not give the text, as
// with SentencePiece, which writes the spaces before words.
std::vector<std::size_t> PromptEncoder::token_ends(std::span<const std::int32_t> ids,
                                                   std::string_view text) const {
  std::vector<std::size_t> ends;
  std::string bytes;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::size_t begin = bytes.size();
    tokenizer_.decode(ids.subspan(i, 1), bytes, SpecialTokens::Honoured);
    if (text.substr(begin, bytes.size() - begin) != std::string_view(bytes).substr(begin))
      return {};
    ends.push_back(bytes.size());
  }
  return bytes.size() == text.size() ? ends : std::vector<std::size_t>();
}

PromptEncoder::Marked PromptEncoder::encode_as_one_text(std::span<const ChatText> pieces) const {
  // Two contents could form a special token together.
  const bool only_contents = std::all_of(pieces.begin(), pieces.end(),
                                         [](const ChatText& piece) { return piece.content; });
  const auto special = only_contents ? SpecialTokens::AsText : SpecialTokens::Honoured;
  const std::string text = text_of(pieces);
  Marked marked;
  tokenizer_.encode(text, marked.ids, special);
  const std::vector<std::size_t> ends = token_ends(marked.ids, text);
  // The tokens that end before a byte; without `ends`, those that the text before it has in common
  // with the whole text.
  const auto tokens_before = [&](std::size_t byte) -> std::size_t {
    if (!ends.empty())
      return static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), byte) -
                                      ends.begin());
    std::vector<std::int32_t> ids;
    tokenizer_.encode(std::string_view(text).substr(0, byte), ids, special);
    const auto common = std::mismatch(ids.begin(), ids.end(), marked.ids.begin(), marked.ids.end());
    return static_cast<std::size_t>(common.first - ids.begin());
  };
  std::size_t byte = 0;
  bool answer = false;
  for (const ChatText& piece : pieces) {
    if (piece.answer != answer)
      marked.answer.resize(std::max(tokens_before(byte), marked.answer.size()), answer ? 1 : 0);
    answer = piece.answer;
    byte += piece.text.size();
  }
  marked.answer.resize(marked.ids.size(), answer ? 1 : 0);
  return marked;
}

PromptEncoder::Marked PromptEncoder::encode_answers(std::span<const ChatText> pieces) const {
  Marked marked;
  if (!divides(pieces)) {
    marked = encode_as_one_text(pieces);
  } else {
    for (const ChatText& piece : pieces) {
      tokenizer_.encode(piece.text, marked.ids,
                        piece.content ? SpecialTokens::AsText : SpecialTokens::Honoured);
      marked.answer.resize(marked.ids.size(), piece.answer ? 1 : 0);
    }
  }
  const std::size_t tokens = marked.ids.size();
  marked.ids = with_bos(std::move(marked.ids));
  marked.answer.insert(marked.answer.begin(), marked.ids.size() - tokens, 0);
  return marked;
}

}  // namespace kintsugi
