#include "serve/conversation.h"

#include <algorithm>
#include <utility>

namespace kintsugi {

Conversation::Conversation(const ChatFormat& format, std::string system)
    : format_(&format), system_(std::move(system)) {}

void Conversation::add_answer(std::string_view generated) {
  turns_.push_back({"assistant", answer_content(*format_, generated)});
}

void Conversation::set_system(std::string system) {
  system_ = std::move(system);
  reset();
}

std::vector<ChatPiece> Conversation::pieces() const {
  std::vector<ChatMessage> messages;
  if (!system_.empty()) messages.push_back({"system", system_});
  messages.insert(messages.end(), turns_.begin(), turns_.end());
  return chat_pieces(*format_, messages, true);
}

std::size_t Conversation::fit(
    std::int64_t limit, const std::function<std::int64_t(std::span<const ChatPiece>)>& count) {
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
