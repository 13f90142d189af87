#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/chat/chat_template.h"
#include "http/http_handler.h"
#include "serve/sampling.h"

namespace kintsugi {

// The fields of a JSON object from a client. Each function throws an HttpError (400) that names the
// field if its value has another type or is out of range. A field that is null counts as absent.
class JsonFields {
 public:
  using Json = nlohmann::json;

  explicit JsonFields(std::string_view body);  // HttpError unless it is a JSON object
  // An object inside; `name` is how errors call it.
  JsonFields(Json object, std::string name);

  const Json* find(const std::string& field) const;
  const Json& required(const std::string& field) const;
  std::string name_of(const std::string& field) const;  // "stream_options.include_usage"

  std::optional<bool> boolean(const std::string& field) const;
  std::optional<std::int64_t> integer(const std::string& field, std::int64_t low,
                                      std::int64_t high) const;
  std::optional<double> number(const std::string& field, double low, double high) const;
  std::optional<std::string> text(const std::string& field) const;

  // Refuses fields that would change the result, unless they have a value that does not.
  void refuse(std::initializer_list<const char*> fields) const;
  // Refuses fields that no function above was asked for, except `ignored`: a typo would otherwise
  // silently give another result. To be called last.
  void refuse_unknown(std::initializer_list<const char*> ignored = {}) const;

 private:
  mutable std::set<std::string> known_;  // names that were asked for
  Json object_;
  std::string prefix_;
};

// A list of token ids; `name` is for errors.
std::vector<std::int32_t> token_ids(const nlohmann::json& list, const std::string& name);

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
