#include "serve/http/request_bodies.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/log.h"
#include "core/units.h"

namespace kintsugi {
namespace {

// A small body can become large in memory, so its parts are counted while it is parsed.
constexpr int kDeepestBody = 32;
constexpr std::int64_t kMostContainers = 1 << 16, kMostValues = 1 << 22;

nlohmann::json parse_body(std::string_view body) {
  using Json = nlohmann::json;
  std::int64_t containers = 0, values = 0;
  const Json::parser_callback_t count = [&](int depth, Json::parse_event_t event, Json&) {
    using Event = Json::parse_event_t;
    if (event == Event::array_start || event == Event::object_start) ++containers;
    if (event == Event::value) ++values;
    if (depth > kDeepestBody || containers > kMostContainers || values > kMostValues)
      throw HttpError(400, "invalid_json",
                      fmt::format("the body has more than {} levels, {} lists or {} values",
                                  kDeepestBody, kMostContainers, kMostValues));
    return true;
  };
  try {
    Json json = Json::parse(body, count);
    if (!json.is_object()) throw HttpError(400, "invalid_json", "the body is not a JSON object");
    return json;
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at …": the part after the brackets.
    std::string_view text = error.what();
    if (const std::size_t end = text.find("] "); end != text.npos) text.remove_prefix(end + 2);
    throw HttpError(400, "invalid_json", fmt::format("the body is not JSON: {}", text));
  }
}

// Values with which an unsupported field changes nothing.
bool is_neutral(const nlohmann::json& value) {
  return value.is_null() || value == false || value == 0 || value == 0.0 || value == "" ||
         ((value.is_object() || value.is_array()) && value.empty());
}

}  // namespace

JsonFields::JsonFields(std::string_view body) : object_(parse_body(body)) {}

JsonFields::JsonFields(Json object, std::string name)
    : object_(std::move(object)), prefix_(name + ".") {
  if (!object_.is_object()) bad_field(name, "must be an object");
}

std::string JsonFields::name_of(const std::string& field) const { return prefix_ + field; }

const nlohmann::json* JsonFields::find(const std::string& field) const {
  known_.insert(field);
  const auto found = object_.find(field);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const nlohmann::json& JsonFields::required(const std::string& field) const {
  const Json* value = find(field);
  if (value == nullptr) bad_field(name_of(field), "is required");
  return *value;
}

std::optional<bool> JsonFields::boolean(const std::string& field) const {
  const Json* value = find(field);
  if (value == nullptr) return {};
  if (!value->is_boolean()) bad_field(name_of(field), "must be true or false");
  return value->get<bool>();
}

std::optional<std::int64_t> JsonFields::integer(const std::string& field, std::int64_t low,
                                                std::int64_t high) const {
  const Json* value = find(field);
  if (value == nullptr) return {};
  // Unsigned numbers above INT64_MAX would wrap.
  const bool fits = value->is_number_unsigned()
                        ? value->get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX)
                        : value->is_number_integer();
  if (!fits || value->get<std::int64_t>() < low || value->get<std::int64_t>() > high)
    bad_field(name_of(field), fmt::format("must be a whole number from {} to {}", low, high));
  return value->get<std::int64_t>();
}

std::optional<double> JsonFields::number(const std::string& field, double low, double high) const {
  const Json* value = find(field);
  if (value == nullptr) return {};
  if (!value->is_number() || !(value->get<double>() >= low && value->get<double>() <= high))
    bad_field(name_of(field), fmt::format("must be a number from {} to {}", low, high));
  return value->get<double>();
}

std::optional<std::string> JsonFields::text(const std::string& field) const {
  const Json* value = find(field);
  if (value == nullptr) return {};
  if (!value->is_string()) bad_field(name_of(field), "must be a string");
  return value->get<std::string>();
}

void JsonFields::refuse(std::initializer_list<const char*> fields) const {
  for (const char* field : fields)
    if (const Json* value = find(field); value != nullptr && !is_neutral(*value))
      throw HttpError(
          400, "unsupported_field",
          fmt::format("{}: is not supported by this server; leave it out", name_of(field)));
}

void JsonFields::refuse_unknown(std::initializer_list<const char*> ignored) const {
  known_.insert(ignored.begin(), ignored.end());
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name)) continue;
    const std::string near = nearest_word(name, known_);
    throw HttpError(
        400, "unknown_field",
        fmt::format("{}: is not a field of this request{}", printable(name_of(name)),
                    near.empty() ? "; leave it out" : fmt::format("; did you mean '{}'?", near)));
  }
}

std::vector<std::int32_t> token_ids(const nlohmann::json& list, const std::string& name) {
  if (!list.is_array()) bad_field(name, "must be a list of token ids");
  std::vector<std::int32_t> ids;
  ids.reserve(list.size());
  for (const nlohmann::json& value : list) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT32_MAX)
      bad_field(name, fmt::format("entry {} is not a token id", ids.size()));
    ids.push_back(static_cast<std::int32_t>(value.get<std::uint64_t>()));
  }
  return ids;
}

// ---- bodies

namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostLogprobs = 20;  // as OpenAI's API
constexpr std::size_t kMostStops = 64, kLongestStop = 1024;

std::vector<std::string> read_stop(const JsonFields& fields) {
  const Json* value = fields.find("stop");
  if (value == nullptr) return {};
  const Json list = value->is_array() ? *value : Json::array({*value});
  std::vector<std::string> result;
  for (const Json& entry : list) {
    if (!entry.is_string()) bad_field("stop", "must be a string or a list of strings");
    if (entry.get_ref<const std::string&>().empty())
      bad_field("stop", "has an empty string; give at least one character");
    if (entry.get_ref<const std::string&>().size() > kLongestStop || result.size() == kMostStops)
      bad_field("stop", fmt::format("at most {} strings of {} bytes", kMostStops, kLongestStop));
    result.push_back(entry.get<std::string>());
  }
  return result;
}

void read_sampling(const JsonFields& fields, SamplingOptions& sampling) {
  sampling.temperature = fields.number("temperature", 0, 100).value_or(1.0);
  sampling.top_p = fields.number("top_p", 0, 1).value_or(1.0);
  sampling.top_k = std::max<std::int64_t>(0, fields.integer("top_k", -1, INT32_MAX).value_or(0));
  sampling.min_p = fields.number("min_p", 0, 1).value_or(0.0);
  sampling.repetition_penalty = fields.number("repetition_penalty", 0.01, 100).value_or(1.0);
}

std::optional<std::uint64_t> read_seed(const JsonFields& fields) {
  const Json* value = fields.find("seed");
  if (value == nullptr) return {};
  if (!value->is_number_integer()) bad_field("seed", "must be a whole number of 64 bits");
  return value->is_number_unsigned() ? value->get<std::uint64_t>()
                                     : static_cast<std::uint64_t>(value->get<std::int64_t>());
}

void read_parameters(const JsonFields& fields, const RequestLimits& limits, TextParameters& out) {
  fields.refuse({"logit_bias", "presence_penalty", "frequency_penalty", "ignore_eos", "min_tokens",
                 "use_beam_search", "length_penalty", "bad_words", "allowed_token_ids",
                 "guided_json", "guided_regex", "guided_choice", "guided_grammar", "typical_p",
                 "mirostat", "truncate_prompt_tokens", "prompt_logprobs", "grammar"});
  out.model = fields.text("model").value_or("");
  out.n = fields.integer("n", 1, limits.max_batch).value_or(1);
  if (const auto best_of = fields.integer("best_of", 1, INT32_MAX).value_or(out.n);
      best_of != out.n)
    bad_field("best_of", "is not supported unless it equals n");
  out.seed = read_seed(fields);
  read_sampling(fields, out.sampling);
  out.stop = read_stop(fields);
  if (const Json* ids = fields.find("stop_token_ids"))
    out.stop_tokens = token_ids(*ids, "stop_token_ids");
  if (out.stop_tokens.size() > kMostStops)
    bad_field("stop_token_ids", fmt::format("at most {} ids", kMostStops));
  out.stream = fields.boolean("stream").value_or(false);
  if (const Json* options = fields.find("stream_options")) {
    if (!out.stream) bad_field("stream_options", "needs stream: true");
    const JsonFields inner(*options, "stream_options");
    out.include_usage = inner.boolean("include_usage").value_or(false);
    inner.refuse_unknown({"include_obfuscation"});
  }
}

// Fields that clients send routinely and that cannot change the text. Others are refused.
void refuse_unknown_fields(const JsonFields& fields) {
  fields.refuse({"include_stop_str_in_output", "reasoning_effort", "verbosity"});
  fields.refuse_unknown({"user", "metadata", "store", "service_tier", "safety_identifier",
                         "prompt_cache_key", "prompt_cache_retention", "request_id", "priority",
                         "skip_special_tokens", "spaces_between_special_tokens"});
}

// A string, a list of strings, a list of ids or a list of lists of ids.
std::vector<PromptInput> read_prompts(const Json& value, const RequestLimits& limits) {
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array() || value.empty())
    bad_field("prompt", "must be a string, a list of strings, of token ids, or of lists of ids");
  if (value.front().is_number()) return {token_ids(value, "prompt")};
  if (std::ssize(value) > limits.max_batch)
    bad_field("prompt", fmt::format("has {} prompts, more than the {} of this server (--max-batch)",
                                    value.size(), limits.max_batch));
  std::vector<PromptInput> prompts;
  for (const Json& entry : value) {
    const std::string name = fmt::format("prompt[{}]", prompts.size());
    if (entry.type() != value.front().type())
      bad_field(name, "is of another kind than the first prompt");
    if (entry.is_string())
      prompts.emplace_back(entry.get<std::string>());
    else
      prompts.emplace_back(token_ids(entry, name));
  }
  return prompts;
}

// A string, or a list of {"type": "text", "text": …}.
std::string message_content(const JsonFields& message) {
  const Json* value = message.find("content");
  const std::string name = message.name_of("content");
  if (value == nullptr) bad_field(name, "is required");
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_array()) bad_field(name, "must be a string or a list of parts");
  std::string text;
  std::size_t number = 0;
  for (const Json& entry : *value) {
    const JsonFields part(entry, fmt::format("{}[{}]", name, number++));
    if (part.text("type") != "text")
      bad_field(part.name_of("type"), "must be text: this server reads nothing else");
    text += part.text("text").value_or("");
    part.refuse_unknown();
  }
  return text;
}

std::vector<ChatMessage> read_messages(const Json& list) {
  if (!list.is_array() || list.empty())
    bad_field("messages", "must be a list with at least one message");
  std::vector<ChatMessage> messages;
  for (const Json& entry : list) {
    const JsonFields message(entry, fmt::format("messages[{}]", messages.size()));
    message.refuse({"tool_calls", "function_call", "audio"});
    std::string role = message.text("role").value_or("");
    if (role == "developer") role = "system";  // the newer name
    if (role != "system" && role != "user" && role != "assistant")
      bad_field(message.name_of("role"), "must be system, user or assistant");
    messages.push_back({std::move(role), message_content(message)});
    message.refuse_unknown({"name", "refusal", "type"});
  }
  return messages;
}

void refuse_tools(const JsonFields& fields) {
  fields.refuse({"tools", "functions", "audio", "web_search_options", "prediction",
                 "continue_final_message", "chat_template", "chat_template_kwargs"});
  if (const Json* format = fields.find("response_format")) {
    const JsonFields inner(*format, "response_format");
    if (inner.text("type").value_or("text") != "text")
      bad_field("response_format.type", "must be text: others are not supported");
  }
  // Without tools these say nothing.
  for (const char* name : {"tool_choice", "function_call"})
    if (const Json* value = fields.find(name); value && *value != "none" && *value != "auto")
      bad_field(name, "must be none or auto: there are no tools");
  fields.boolean("parallel_tool_calls");
  if (const Json* value = fields.find("modalities"); value && *value != Json::array({"text"}))
    bad_field("modalities", "must be [\"text\"]");
}

}  // namespace

CompletionBody parse_completion_body(std::string_view body, const RequestLimits& limits) {
  const JsonFields fields(body);
  fields.refuse({"suffix"});
  CompletionBody result;
  result.prompts = read_prompts(fields.required("prompt"), limits);
  read_parameters(fields, limits, result);
  result.echo = fields.boolean("echo").value_or(false);
  result.max_tokens = fields.integer("max_tokens", result.echo ? 0 : 1, limits.max_tokens);
  result.sampling.logprobs = fields.integer("logprobs", 0, kMostLogprobs).value_or(-1);
  if (std::ssize(result.prompts) * result.n > limits.max_batch)
    bad_field(
        "n", fmt::format("{} prompts times n are more than the {} texts of a request (--max-batch)",
                         result.prompts.size(), limits.max_batch));
  refuse_unknown_fields(fields);
  return result;
}

ChatBody parse_chat_body(std::string_view body, const RequestLimits& limits) {
  const JsonFields fields(body);
  refuse_tools(fields);
  ChatBody result;
  result.messages = read_messages(fields.required("messages"));
  read_parameters(fields, limits, result);
  result.max_tokens = fields.integer("max_completion_tokens", 1, limits.max_tokens);
  const auto older = fields.integer("max_tokens", 1, limits.max_tokens);
  if (!result.max_tokens) result.max_tokens = older;
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMostLogprobs);
  if (top && !wanted) bad_field("top_logprobs", "needs logprobs: true");
  if (wanted) result.sampling.logprobs = top.value_or(0);
  refuse_unknown_fields(fields);
  return result;
}

TokenizeBody parse_tokenize_body(std::string_view body) {
  const JsonFields fields(body);
  TokenizeBody result;
  if (const Json* messages = fields.find("messages")) {
    if (fields.find("prompt") != nullptr) bad_field("messages", "cannot be given with prompt");
    result.messages = read_messages(*messages);
  } else {
    fields.required("prompt");
    result.prompt = *fields.text("prompt");
    result.add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  }
  fields.refuse_unknown({"model"});
  return result;
}

std::vector<std::int32_t> parse_detokenize_body(std::string_view body) {
  const JsonFields fields(body);
  std::vector<std::int32_t> ids = token_ids(fields.required("tokens"), "tokens");
  fields.refuse_unknown({"model"});
  return ids;
}

}  // namespace kintsugi
