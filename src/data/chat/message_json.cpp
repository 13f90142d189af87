#include "data/chat/message_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace kintsugi {
namespace {

using Json = nlohmann::json;

constexpr int kDeepestObject = 64;  // levels of JSON

bool is_trained(const Json& message, const std::string& what) {
  bool trained = true;
  if (const auto found = message.find("train"); found != message.end()) {
    if (!found->is_boolean()) user_error("\"train\" of {} is not true or false", what);
    trained = found->get<bool>();
  }
  if (const auto found = message.find("weight"); found != message.end()) {
    if (!found->is_number() || (*found != 0 && *found != 1))
      user_error("\"weight\" of {} is not 0 or 1", what);
    trained &= *found == 1;
  }
  return trained;
}

}  // namespace

Json parse_json_object(std::string_view text, const std::string& expected) {
  const Json::parser_callback_t depth = [](int level, Json::parse_event_t, Json&) {
    if (level > kDeepestObject) user_error("nested deeper than {} levels", kDeepestObject);
    return true;
  };
  Json json;
  try {
    json = Json::parse(text, depth);
  } catch (const Json::exception&) {
    user_error("not valid JSON: expected {}", expected);
  }
  if (!json.is_object()) user_error("not a JSON object");
  return json;
}

std::string json_string(const Json& object, const char* key, const std::string& what) {
  const auto found = object.find(key);
  if (found == object.end()) user_error("{} has no \"{}\"", what, key);
  if (!found->is_string()) user_error("\"{}\" of {} is not a string", key, what);
  return found->get<std::string>();
}

std::vector<ChatMessage> messages_of(const Json& list, const std::string& name) {
  if (!list.is_array() || list.empty()) user_error("\"{}\" is not a list of messages", name);
  std::vector<ChatMessage> messages;
  for (const Json& entry : list) {
    const std::string what = fmt::format("message {}", messages.size() + 1);
    if (!entry.is_object()) user_error("{} is not an object", what);
    messages.push_back({json_string(entry, "role", what), json_string(entry, "content", what),
                        is_trained(entry, what)});
  }
  return messages;
}

}  // namespace kintsugi
