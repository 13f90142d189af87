#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/hash.h"
#include "data/tokenizers/bpe_tokenizer.h"
#include "data/tokenizers/byte_alphabet.h"

namespace kintsugi {
namespace {

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
                .fingerprint = {},
                .normalizer = Normalizer::of_json(member(json_, "normalizer").dump()),
                .pre_tokenizer = PreTokenizer::of_json(member(json_, "pre_tokenizer").dump()),
                .model = nullptr,
                .decoder = {},
                .raw_tokens = {},
                .normalized_tokens = {},
                .tokens = {},
                .ids = {},
                .end_of_document = {},
                .begin_of_document = {}} {}

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

BpeDefinition read_tokenizer_json(const std::string& json, TokenizerCompanions companions) {
  try {
    return Reader(json, std::move(companions)).run();
  } catch (const MapJson::exception& error) {
    user_error("{}", error.what());
  }
}

}  // namespace kintsugi
