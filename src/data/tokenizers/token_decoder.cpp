#include "data/tokenizers/token_decoder.h"

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

}  // namespace kintsugi
