#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_template.h"

namespace kintsugi {

// A prompt of the user: a text, or the messages of a conversation.
struct Prompt {
  std::string source;  // for errors: "prompts.jsonl, line 3"
  std::string text = {};
  std::vector<ChatMessage> messages = {};  // if not empty, instead of text
};

// Reads prompts from the content of a file: one per line, or JSONL with {"prompt": "…"} or
// {"messages": [{"role": "…", "content": "…"}, …]}; other keys are ignored, and so are empty lines.
// A UserError names the file and the line.
std::vector<Prompt> parse_prompts(std::string_view content, const std::string& name, bool jsonl);

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
  std::vector<ChatText> pieces() const;  // with the generation prompt

  // Drops the oldest messages until count(pieces()) is at most `limit`; the system message and the
  // last user message stay. Returns how many were dropped.
  std::size_t fit(std::int64_t limit,
                  const std::function<std::int64_t(std::span<const ChatText>)>& count);

 private:
  const ChatFormat* format_;
  std::string system_;
  std::vector<ChatMessage> turns_;  // user and assistant, from a user message to a user message
};

}  // namespace kintsugi
