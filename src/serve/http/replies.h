#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "serve/generation.h"
#include "serve/text_output.h"

namespace kintsugi {

// Counts the characters (code points) of a text that arrives in pieces, as clients see it: bytes
// that are no UTF-8 have become U+FFFD, one for each maximal beginning of a character.
class CharacterCount {
 public:
  void add(std::string_view bytes);
  // The index of the character that the first of these bytes belongs to, if they are added next.
  std::int64_t index_of(std::string_view bytes) const;

 private:
  std::int64_t whole_ = 0;
  std::string begun_;  // bytes of a character that more bytes may complete
};

// The text of each token of a sequence, and where it begins.
class TokenTexts {
 public:
  struct Entry {
    std::string bytes;
    std::int64_t offset = 0;  // in characters (code points): that of its first byte
  };

  // `before`: the tokens in front, which determine how some tokenizers write the first one.
  explicit TokenTexts(const Tokenizer* tokenizer, std::span<const std::int32_t> before = {});

  Entry add(std::int32_t id);
  std::string alternative(std::int32_t id) const;  // the bytes of another token at this position

 private:
  TextOutput output_;
  CharacterCount characters_;
};

// Text for JSON: as it is if it is UTF-8, otherwise bytes:\xe2\x82 so that nothing is lost.
std::string json_text(std::string_view bytes);

std::int64_t count_characters(std::string_view text);

using OrderedJson = nlohmann::ordered_json;

// What all replies to one request share.
struct ReplyHead {
  std::string id;
  std::int64_t created = 0;  // seconds since 1970
  std::string model;
};

struct TokenUsage {
  std::int64_t prompt = 0, completion = 0;
};

// The log-probabilities of /v1/completions: parallel lists over tokens.
class CompletionLogprobs {
 public:
  // `top`: how many alternatives a client wants. The token itself is always among them.
  explicit CompletionLogprobs(std::int64_t top) : top_(top) {}
  // A token without a log-probability: the first of a prompt.
  void add_plain(std::string_view text, std::int64_t offset);
  // Appends the token to `texts` too.
  void add(const SampledToken& token, TokenTexts& texts);
  OrderedJson json() const;

 private:
  std::int64_t top_;
  OrderedJson tokens_ = OrderedJson::array(), values_ = OrderedJson::array(),
              alternatives_ = OrderedJson::array(), offsets_ = OrderedJson::array();
};
// An entry of {"content": […]} of /v1/chat/completions.
OrderedJson chat_logprob(const SampledToken& token, std::int64_t top, TokenTexts& texts);

// `finish` without a value: the text goes on.
// `key`: text of a completion, message or delta of a chat.
OrderedJson choice_json(std::size_t index, const char* key, OrderedJson content,
                        OrderedJson logprobs, std::optional<FinishReason> finish);
OrderedJson usage_json(const TokenUsage& usage);

// A reply with choices; `object` is text_completion, chat.completion or chat.completion.chunk.
OrderedJson reply_json(const ReplyHead& head, const char* object, OrderedJson choices);

// One line without control characters. Doubles are written so that they read back as the same.
std::string json_line(const OrderedJson& json);
// A server-sent event.
std::string event_text(const OrderedJson& json);
inline constexpr std::string_view kLastEvent = "data: [DONE]\n\n";

}  // namespace kintsugi
