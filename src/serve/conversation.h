#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_template.h"

namespace kintsugi {

// The messages of a chat that the model is given as context.
class Conversation {
 public:
  Conversation(const ChatFormat& format, std::string system);  // empty system: none

  void add_user(std::string content) { turns_.push_back({"user", std::move(content)}); }
  void add_answer(std::string_view generated);  // the text after the generation prompt
  void reset() { turns_.clear(); }
  void set_system(std::string system);  // and begins again

  const std::vector<ChatMessage>& turns() const { return turns_; }
  const std::string& system() const { return system_; }
  std::vector<ChatPiece> pieces() const;  // with the generation prompt

  // Drops the oldest messages until count(pieces()) is at most `limit`; the system message and the
  // last user message stay. Returns how many were dropped.
  std::size_t fit(std::int64_t limit,
                  const std::function<std::int64_t(std::span<const ChatPiece>)>& count);

 private:
  const ChatFormat* format_;
  std::string system_;
  std::vector<ChatMessage> turns_;  // user and assistant, from a user message to a user message
};

}  // namespace kintsugi
