#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/chat/chat_template.h"
#include "serve/sampling.h"

namespace kintsugi {

// What a client may ask for in one request.
struct RequestLimits {
  std::int64_t max_batch = 128;    // texts: prompts x n
  std::int64_t max_tokens = 4096;  // to generate, for each text
  // Of a reply: tokens of all texts x (1 + logprobs).
  std::int64_t max_entries = 4'000'000;
};

// What /v1/completions and /v1/chat/completions share.
struct TextParameters {
  std::string model = {};  // empty: not given
  std::optional<std::int64_t> max_tokens = {};
  std::int64_t n = 1;
  SamplingOptions sampling = {};  // with logprobs
  std::optional<std::uint64_t> seed = {};
  std::vector<std::string> stop = {};
  std::vector<std::int32_t> stop_tokens = {};
  bool stream = false, include_usage = false;
};

using PromptInput = std::variant<std::string, std::vector<std::int32_t>>;

struct CompletionBody : TextParameters {
  std::vector<PromptInput> prompts;
  bool echo = false;
};
struct ChatBody : TextParameters {
  std::vector<ChatMessage> messages;
};
struct TokenizeBody {
  std::string prompt = {};
  std::vector<ChatMessage> messages = {};  // instead of a prompt
  bool add_special_tokens = true;
};

// Each throws an HttpError that names the field. Fields of the OpenAI API that change nothing are
// ignored; those that would change the result and are not supported are refused, and unknown ones.
CompletionBody parse_completion_body(std::string_view body, const RequestLimits& limits);
ChatBody parse_chat_body(std::string_view body, const RequestLimits& limits);
TokenizeBody parse_tokenize_body(std::string_view body);
std::vector<std::int32_t> parse_detokenize_body(std::string_view body);

}  // namespace kintsugi
