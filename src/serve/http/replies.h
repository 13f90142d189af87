#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/generation.h"
#include "serve/http/token_texts.h"

namespace kintsugi {

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
OrderedJson completion_choice(std::size_t index, std::string_view text, OrderedJson logprobs,
                              std::optional<FinishReason> finish);
OrderedJson chat_choice(std::size_t index, std::string_view content, OrderedJson logprobs,
                        FinishReason finish);
OrderedJson chat_delta(std::size_t index, OrderedJson delta, OrderedJson logprobs,
                       std::optional<FinishReason> finish);
OrderedJson usage_json(const TokenUsage& usage);

// A reply with choices; `object` is text_completion, chat.completion or chat.completion.chunk.
OrderedJson reply_json(const ReplyHead& head, const char* object, OrderedJson choices);

// One line without control characters. Doubles are written so that they read back as the same.
std::string json_line(const OrderedJson& json);
// A server-sent event.
std::string event_text(const OrderedJson& json);
inline constexpr std::string_view kLastEvent = "data: [DONE]\n\n";

}  // namespace kintsugi
