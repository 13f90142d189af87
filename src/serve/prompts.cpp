#include "serve/prompts.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace kintsugi {
namespace {

using Json = nlohmann::json;

constexpr int kDeepestPrompt = 64;  // levels of JSON

std::string string_of(const Json& object, const char* key, const std::string& what) {
  const auto found = object.find(key);
  if (found == object.end()) user_error("{} has no \"{}\"", what, key);
  if (!found->is_string()) user_error("\"{}\" of {} is not a string", key, what);
  return found->get<std::string>();
}

std::vector<ChatMessage> messages_of(const Json& list) {
  if (!list.is_array() || list.empty()) user_error("\"messages\" is not a list of messages");
  std::vector<ChatMessage> messages;
  for (const Json& entry : list) {
    const std::string what = fmt::format("message {}", messages.size() + 1);
    if (!entry.is_object()) user_error("{} is not an object", what);
    messages.push_back({string_of(entry, "role", what), string_of(entry, "content", what)});
  }
  return messages;
}

void parse_json_prompt(std::string_view line, Prompt& prompt) {
  const Json::parser_callback_t depth = [](int level, Json::parse_event_t, Json&) {
    if (level > kDeepestPrompt) user_error("nested deeper than {} levels", kDeepestPrompt);
    return true;
  };
  Json json;
  try {
    json = Json::parse(line, depth);
  } catch (const Json::exception&) {
    user_error("not valid JSON: expected {{\"prompt\": \"…\"}} or {{\"messages\": […]}}");
  }
  if (!json.is_object()) user_error("not a JSON object");
  if (json.contains("prompt") == json.contains("messages"))
    user_error("give either \"prompt\" or \"messages\"");
  if (json.contains("messages"))
    prompt.messages = messages_of(json["messages"]);
  else
    prompt.text = string_of(json, "prompt", "the object");
}

}  // namespace

std::vector<Prompt> parse_prompts(std::string_view content, const std::string& name, bool jsonl) {
  std::vector<Prompt> prompts;
  if (content.starts_with("\xEF\xBB\xBF")) content.remove_prefix(3);  // a byte order mark
  for (std::size_t number = 1; !content.empty(); ++number) {
    const std::size_t end = content.find('\n');
    std::string_view line = content.substr(0, end);
    content.remove_prefix(end == content.npos ? content.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == line.npos) continue;
    Prompt prompt{.source = fmt::format("{}, line {}", name, number)};
    try {
      if (jsonl)
        parse_json_prompt(line, prompt);
      else
        prompt.text = line;
    } catch (const UserError& error) {
      user_error("{}: {}", prompt.source, error.what());
    }
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

}  // namespace kintsugi
