#include "serve/prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "data/chat/example.h"

namespace kintsugi {
namespace {

void parse_json_prompt(std::string_view line, Prompt& prompt) {
  const nlohmann::json json = parse_json_object(line, "{\"prompt\": \"…\"} or {\"messages\": […]}");
  if (json.contains("prompt") == json.contains("messages"))
    user_error("give either \"prompt\" or \"messages\"");
  if (json.contains("messages"))
    prompt.messages = messages_of(json["messages"], "messages");
  else
    prompt.text = json_string(json, "prompt", "the object");
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

Conversation::Conversation(const ChatFormat& format, std::string system)
    : format_(&format), system_(std::move(system)) {}

void Conversation::add_answer(std::string_view generated) {
  turns_.push_back({"assistant", answer_content(*format_, generated)});
}

void Conversation::set_system(std::string system) {
  system_ = std::move(system);
  reset();
}

std::vector<ChatText> Conversation::pieces() const {
  std::vector<ChatMessage> messages;
  if (!system_.empty()) messages.push_back({"system", system_});
  messages.insert(messages.end(), turns_.begin(), turns_.end());
  return chat_pieces(*format_, messages, true);
}

std::size_t Conversation::fit(std::int64_t limit,
                              const std::function<std::int64_t(std::span<const ChatText>)>& count) {
  const std::size_t before = turns_.size();
  const auto from_user = [](const ChatMessage& message) { return message.role == "user"; };
  while (count(pieces()) > limit) {
    const auto next = std::find_if(turns_.begin() + 1, turns_.end(), from_user);
    if (next == turns_.end()) break;
    turns_.erase(turns_.begin(), next);
  }
  return before - turns_.size();
}

}  // namespace kintsugi
