#include "data/tokenizers/bpe_tokenizer.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/hash.h"
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

using MapJson = nlohmann::json;  // a std::map: ordered_json takes quadratic time for a vocabulary

constexpr std::int64_t kMostTokens = 1 << 20;
constexpr int kMaxDepth = 64;  // levels of JSON

std::int32_t checked_id(const MapJson& value, const std::string& token) {
  if (!value.is_number_integer()) user_error("the id of the token '{}' is not a number", token);
  const auto id = value.get<std::int64_t>();
  if (id < 0 || id >= kMostTokens)
    user_error("the token '{}' has the id {}, outside of 0 to {}", token, id, kMostTokens - 1);
  return static_cast<std::int32_t>(id);
}

// nlohmann's parser accepts any depth, but other functions recurse over the result.
MapJson parse(const std::string& text) {
  const MapJson::parser_callback_t depth = [](int level, MapJson::parse_event_t, MapJson&) {
    if (level > kMaxDepth) user_error("nested deeper than {} levels", kMaxDepth);
    return true;
  };
  MapJson json = MapJson::parse(text, depth);
  if (!json.is_object()) user_error("not a JSON object");
  return json;
}

MapJson member(const MapJson& json, const char* name) {
  const auto found = json.find(name);
  return found == json.end() ? MapJson() : *found;
}

class Reader {
 public:
  Reader(const std::string& text, TokenizerCompanions companions)
      : json_(parse(text)),
        result_{.json = text,
                .companions = std::move(companions),
                .normalizer = Normalizer::of_json(member(json_, "normalizer").dump()),
                .pre_tokenizer = PreTokenizer::of_json(member(json_, "pre_tokenizer").dump())} {}

  BpeDefinition run() {
    const MapJson decoder = member(json_, "decoder");
    const bool bytes = decoder.is_null() && result_.pre_tokenizer.byte_level();
    result_.decoder = TokenDecoder::of_json(bytes ? R"({"type":"ByteLevel"})" : decoder.dump());
    check_model();
    read_vocabulary();
    read_merges();
    read_added_tokens();
    read_ends();
    take_fingerprint();
    return std::move(result_);
  }

 private:
  const MapJson& model() const { return json_.at("model"); }

  void check_model() {
    if (!json_.contains("model") || !model().is_object()) user_error("it has no \"model\" object");
    const std::string type = model().value("type", "BPE");
    if (type != "BPE") user_error("model: the type {} is not supported (known: BPE)", type);
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const MapJson value = member(model(), name); !value.is_null() && value != "")
        user_error("model: {} is not supported; only null is", name);
    if (const MapJson value = member(model(), "dropout"); !value.is_null() && value != 0.0)
      user_error("model: dropout makes encoding random and is not supported; set it to null");
  }

  BpeDefinition::Token& token_at(std::int32_t id) {
    const auto index = static_cast<std::size_t>(id);
    if (index >= result_.tokens.size()) result_.tokens.resize(index + 1);
    return result_.tokens[index];
  }

  void read_vocabulary() {
    for (const auto& [name, value] : model().at("vocab").items()) {
      const std::int32_t id = checked_id(value, name);
      result_.ids.emplace(name, id);
      BpeDefinition::Token& token = token_at(id);
      if (token.present)
        user_error("model: the tokens '{}' and '{}' have the same id {}", token.name, name, id);
      token = {.name = name, .bytes = result_.decoder.bytes_of(name), .present = true};
    }
    if (result_.ids.empty()) user_error("model: the vocabulary is empty");
  }

  std::int32_t id_of(const std::string& name, std::size_t merge) const {
    const auto found = result_.ids.find(name);
    if (found == result_.ids.end())
      user_error("model: merge {} needs the token '{}', which is not in the vocabulary", merge,
                 name);
    return found->second;
  }

  // "a b" or ["a", "b"]
  std::pair<std::string, std::string> merge_parts(const MapJson& merge, std::size_t number) const {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
      return {merge[0].get<std::string>(), merge[1].get<std::string>()};
    if (merge.is_string()) {
      const auto text = merge.get<std::string>();
      const std::size_t space = text.find(' ');
      if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos)
        return {text.substr(0, space), text.substr(space + 1)};
    }
    user_error("model: merge {} is not two tokens: {}", number, merge.dump());
  }

  void read_merges() {
    std::vector<BpeModel::MergeRule> merges;
    const MapJson& list = model().at("merges");
    if (!list.is_array()) user_error("model: merges is not a list");
    for (const MapJson& merge : list) {
      const std::size_t number = merges.size();
      const auto [left, right] = merge_parts(merge, number);
      merges.push_back({id_of(left, number), id_of(right, number), id_of(left + right, number)});
    }
    BpeModel::Options options{.byte_level = result_.pre_tokenizer.byte_level(),
                              .ignore_merges = model().value("ignore_merges", false),
                              .byte_fallback = model().value("byte_fallback", false),
                              .fuse_unknown = model().value("fuse_unk", false)};
    if (const MapJson name = member(model(), "unk_token"); name.is_string()) {
      const auto found = result_.ids.find(name.get<std::string>());
      if (found != result_.ids.end()) options.unknown = found->second;
    }
    BpeModel::Vocabulary vocabulary;
    vocabulary.reserve(result_.ids.size());
    for (const auto& [name, id] : result_.ids)
      if (!options.byte_level)
        vocabulary.emplace(name, id);
      else if (std::optional<std::string> bytes = from_byte_alphabet(name))
        vocabulary.emplace(std::move(*bytes), id);
    result_.model = std::make_shared<BpeModel>(std::move(vocabulary), merges, options);
  }

  void read_added_tokens() {
    const MapJson list = member(json_, "added_tokens");
    if (list.is_null()) return;
    if (!list.is_array()) user_error("added_tokens is not a list");
    std::vector<AddedTokens::Token> raw, normalized;
    for (const MapJson& entry : list) {
      AddedTokens::Token token{.content = entry.at("content").get<std::string>(),
                               .id = 0,
                               .special = entry.value("special", false),
                               .single_word = entry.value("single_word", false),
                               .strip_left = entry.value("lstrip", false),
                               .strip_right = entry.value("rstrip", false)};
      if (token.content.empty()) continue;
      // A token of the model keeps its id.
      const auto known = result_.ids.find(token.content);
      token.id =
          known != result_.ids.end() ? known->second : checked_id(entry.at("id"), token.content);
      result_.ids.emplace(token.content, token.id);
      token_at(token.id) = {.name = token.content,
                            .bytes = token.content,
                            .present = true,
                            .added = true,
                            .special = token.special};
      if (entry.value("normalized", !token.special)) {
        token.content = std::string(result_.normalizer.apply(token.content));
        normalized.push_back(std::move(token));
      } else {
        raw.push_back(std::move(token));
      }
    }
    result_.raw_tokens = AddedTokens(std::move(raw));
    result_.normalized_tokens = AddedTokens(std::move(normalized));
  }

  std::optional<std::int32_t> first_known(std::initializer_list<const char*> names) const {
    for (const char* name : names)
      if (const auto found = result_.ids.find(name); found != result_.ids.end())
        return found->second;
    return std::nullopt;
  }

  // "</s>" or {"content": "</s>", …}; an empty name means none.
  std::optional<std::int32_t> configured(const MapJson& config, const char* key) const {
    MapJson value = member(config, key);
    if (value.is_object()) value = member(value, "content");
    if (!value.is_string() || value == "") return std::nullopt;
    const auto found = result_.ids.find(value.get<std::string>());
    if (found == result_.ids.end())
      user_error("tokenizer_config.json has the {} '{}', which is not in the tokenizer", key,
                 value.get<std::string>());
    return found->second;
  }

  void read_ends() {
    if (result_.companions.config) {
      MapJson config;
      try {
        config = parse(*result_.companions.config);
      } catch (const MapJson::exception& error) {
        user_error("tokenizer_config.json: {}", error.what());
      }
      result_.end_of_document = configured(config, "eos_token");
      result_.begin_of_document = configured(config, "bos_token");
    }
    if (!result_.end_of_document)
      result_.end_of_document = first_known({"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>",
                                             "<|eos|>", "<EOS>", "[EOS]", "<｜end▁of▁sentence｜>"});
    if (!result_.begin_of_document)
      result_.begin_of_document = first_known({"<|begin_of_text|>", "<s>", "<bos>"});
  }

  void take_fingerprint() {
    MapJson decisive = {{"added_tokens", member(json_, "added_tokens")},
                        {"normalizer", member(json_, "normalizer")},
                        {"pre_tokenizer", member(json_, "pre_tokenizer")},
                        {"model", std::move(json_["model"])}};
    result_.fingerprint = "bpe-" + hex64(hash64(decisive.dump()));
  }

  MapJson json_;
  BpeDefinition result_;
};

}  // namespace

void TokenDecoder::add(const Json& json, bool& fused) {
  if (json.is_null()) return;
  const std::string type = json.at("type").get<std::string>();
  if (type == "Sequence") {
    for (const Json& part : json.at("decoders")) add(part, fused);
  } else if (type == "ByteLevel") {
    byte_level_ = true;
  } else if (type == "ByteFallback") {
    byte_fallback_ = true;
  } else if (type == "Fuse") {
    fused = true;
  } else if (type == "Replace") {
    replacements_.emplace_back(json.at("pattern").at("String").get<std::string>(),
                               json.at("content").get<std::string>());
  } else if (type == "Strip") {
    (fused ? strips_ : token_strips_)
        .push_back({json.at("content").get<std::string>(), json.at("start").get<std::size_t>(),
                    json.at("stop").get<std::size_t>()});
  } else if (type == "Metaspace") {
    const std::string replacement = json.value("replacement", "▁");
    const std::string scheme =
        json.value("prepend_scheme", json.value("add_prefix_space", true) ? "always" : "never");
    replacements_.emplace_back(replacement, " ");
    if (scheme != "never") spaces_dropped_ = replacement;
  } else {
    user_error(
        "decoder: the type {} is not supported (known: ByteLevel, Sequence, Replace, "
        "ByteFallback, Fuse, Strip, Metaspace)",
        type);
  }
}

TokenDecoder TokenDecoder::of_json(std::string_view json) {
  TokenDecoder result;
  try {
    bool fused = false;
    result.add(Json::parse(json), fused);
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

std::string BpeTokenizer::description() const {
  return fmt::format("{}BPE, {} tokens", pre_tokenizer_.byte_level() ? "byte-level " : "",
                     vocab_size());
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

BpeDefinition read_tokenizer_json(const std::string& json, TokenizerCompanions companions) {
  try {
    return Reader(json, std::move(companions)).run();
  } catch (const MapJson::exception& error) {
    user_error("{}", error.what());
  }
}

}  // namespace kintsugi
