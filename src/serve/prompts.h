#pragma once

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

}  // namespace kintsugi
