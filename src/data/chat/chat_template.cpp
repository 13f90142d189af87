#include "data/chat/chat_template.h"

#include <algorithm>

#include "core/error.h"
#include "core/units.h"

namespace kintsugi {
namespace {

std::vector<ChatFormat> make_formats() {
  return {
      // Each message begins with its role.
      {.name = "chatml",
       .system = {"<|im_start|>system\n", "<|im_end|>\n"},
       .user = {"<|im_start|>user\n", "<|im_end|>\n"},
       .assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"},
       .generation_prompt = "<|im_start|>assistant\n",
       .end_of_turn = "<|im_end|>",
       .marks = {"<|im_start|>", "<|im_end|>"},
       .excluded = {"<|im_sep|>", "<end_of_utterance>"}},
      {.name = "llama3",
       .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
       .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
       .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
       .generation_prompt = "<|start_header_id|>assistant<|end_header_id|>\n\n",
       .end_of_turn = "<|eot_id|>",
       .trims = true,
       .marks = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
      {.name = "gemma",
       .system = {"", "\n\n"},
       .user = {"<start_of_turn>user\n", "<end_of_turn>\n"},
       .assistant = {"<start_of_turn>model\n", "<end_of_turn>\n"},
       .generation_prompt = "<start_of_turn>model\n",
       .end_of_turn = "<end_of_turn>",
       .trims = true,
       .joins_system = true,
       .alternates = true,
       .marks = {"<start_of_turn>", "<end_of_turn>"}},
      {.name = "phi4",
       .system = {"<|im_start|>system<|im_sep|>", "<|im_end|>"},
       .user = {"<|im_start|>user<|im_sep|>", "<|im_end|>"},
       .assistant = {"<|im_start|>assistant<|im_sep|>", "<|im_end|>"},
       .generation_prompt = "<|im_start|>assistant<|im_sep|>",
       .end_of_turn = "<|im_end|>",
       .marks = {"<|im_start|>", "<|im_sep|>", "<|im_end|>"}},
      {.name = "command-r",
       .system = {"<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
       .user = {"<|START_OF_TURN_TOKEN|><|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
       .assistant = {"<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
       .generation_prompt = "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
       .end_of_turn = "<|END_OF_TURN_TOKEN|>",
       .trims = true,
       .alternates = true,
       .marks = {"<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"},
       .excluded = {"<|START_RESPONSE|>"}},
      {.name = "granite",
       .system = {"<|start_of_role|>system<|end_of_role|>", "<|end_of_text|>\n"},
       .user = {"<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>\n"},
       .assistant = {"<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>\n"},
       .generation_prompt = "<|start_of_role|>assistant<|end_of_role|>",
       .end_of_turn = "<|end_of_text|>",
       .marks = {"<|start_of_role|>", "<|end_of_role|>"},
       .excluded = {"<tool_call>", "<tools>"}},
      // The roles are words.
      {.name = "vicuna",
       .system = {"", "\n\n"},
       .user = {"USER: ", "\n"},
       .assistant = {"ASSISTANT: ", "</s>\n"},
       .generation_prompt = "ASSISTANT:",
       .end_of_turn = "</s>",
       .marks = {"USER: ", "ASSISTANT: "},
       .excluded = {"SYSTEM: "}},
      {.name = "deepseek",
       .system = {"", ""},
       .user = {"### Instruction:\n", "\n"},
       .assistant = {"### Response:\n", "\n<|EOT|>\n"},
       .generation_prompt = "### Response:\n",
       .end_of_turn = "<|EOT|>",
       .marks = {"### Instruction:", "### Response:", "<|EOT|>"}},
      {.name = "openchat",
       .system = {"", "<|end_of_turn|>"},
       .user = {"GPT4 Correct User: ", "<|end_of_turn|>"},
       .assistant = {"GPT4 Correct Assistant: ", "<|end_of_turn|>"},
       .generation_prompt = "GPT4 Correct Assistant:",
       .end_of_turn = "<|end_of_turn|>",
       .marks = {"GPT4 Correct ", "<|end_of_turn|>"}},
      {.name = "mistral-v1",
       .system = {"", "\n\n"},
       .user = {" [INST] ", " [/INST]"},
       .assistant = {" ", "</s>"},
       .generation_prompt = "",
       .end_of_turn = "</s>",
       .joins_system = true,
       .alternates = true,
       .marks = {" [INST] ", " [/INST]", "system"},
       .excluded = {"<<SYS>>", "[SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]"}},
      {.name = "mistral-v7",
       .system = {"[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"},
       .user = {"[INST] ", "[/INST]"},
       .assistant = {" ", "</s>"},
       .generation_prompt = "",
       .end_of_turn = "</s>",
       .alternates = true,
       .marks = {"[SYSTEM_PROMPT] ", "[INST] ", "[/INST]"}},  // with spaces: not the tekken form
  };
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::string_view content_of(const ChatFormat& format, const ChatMessage& message) {
  return format.trims ? trimmed(message.content) : message.content;
}

const ChatFormat::Turn& turn_of(const ChatFormat& format, const std::string& role) {
  return role == "system" ? format.system : role == "user" ? format.user : format.assistant;
}

// A string literal of Jinja.
std::string quoted(std::string_view text) {
  std::string literal = "'";
  for (const char c : text) {
    if (c == '\n') {
      literal += "\\n";
      continue;
    }
    if (c == '\'' || c == '\\') literal += '\\';
    literal += c;
  }
  return literal + "'";
}

// {{ 'before' + middle + 'after' }}; `middle` is an expression.
std::string printed(const ChatFormat::Turn& turn, const std::string& middle) {
  return "{{ " + quoted(turn.before) + " + " + middle + " + " + quoted(turn.after) + " }}";
}

}  // namespace

const std::vector<ChatFormat>& chat_formats() {
  static const std::vector<ChatFormat> formats = make_formats();
  return formats;
}

std::string chat_format_names() {
  std::string names;
  for (const ChatFormat& format : chat_formats())
    names.append(names.empty() ? "" : ", ").append(format.name);
  return names;
}

const ChatFormat& find_chat_format(std::string_view name) {
  std::vector<std::string_view> names;
  for (const ChatFormat& format : chat_formats()) {
    if (format.name == name) return format;
    names.push_back(format.name);
  }
  const std::string near = nearest_word(name, names);
  user_error("there is no chat format '{}'{}; known: {}", name,
             near.empty() ? "" : fmt::format(", did you mean '{}'", near), chat_format_names());
}

const ChatFormat* recognize_chat_format(std::string_view jinja) {
  const auto has = [&](std::string_view mark) { return jinja.find(mark) != jinja.npos; };
  for (const ChatFormat& format : chat_formats())
    if (std::all_of(format.marks.begin(), format.marks.end(), has) &&
        std::none_of(format.excluded.begin(), format.excluded.end(), has))
      return &format;
  return nullptr;
}

// On one line, because white space between tags would be printed.
std::string jinja_template(const ChatFormat& format, std::string_view bos) {
  const std::string content = format.trims ? "message['content'] | trim" : "message['content']";
  std::string text = bos.empty() ? "" : "{{ " + quoted(bos) + " }}";
  if (format.joins_system) text += "{% set chat = namespace(system='') %}";
  text += "{% for message in messages %}{% set content = " + content +
          " %}{% if message['role'] == 'system' %}";
  if (!format.joins_system)
    text += printed(format.system, "content");
  else  // an empty message that is trimmed is left out
    text += "{% set chat.system = content + " + quoted(format.system.after) +
            (format.trims ? " if content else ''" : "") + " %}";
  text += "{% elif message['role'] == 'user' %}" +
          printed(format.user, format.joins_system ? "chat.system + content" : "content");
  if (format.joins_system) text += "{% set chat.system = '' %}";
  text += "{% elif message['role'] == 'assistant' %}" + printed(format.assistant, "content") +
          "{% endif %}{% endfor %}";
  if (!format.generation_prompt.empty())
    text +=
        "{% if add_generation_prompt %}{{ " + quoted(format.generation_prompt) + " }}{% endif %}";
  return text;
}

const ChatFormat& choose_chat_format(std::string_view name, std::string_view jinja,
                                     std::string_view source) {
  if (!name.empty()) return find_chat_format(name);
  if (const ChatFormat* format = recognize_chat_format(jinja)) return *format;
  user_error("{} has {}: give --chat-template NAME ({})", source,
             jinja.empty() ? "no chat template" : "a chat template of an unknown format",
             chat_format_names());
}

void check_messages(const ChatFormat& format, std::span<const ChatMessage> messages) {
  if (messages.empty()) user_error("the conversation has no messages: give at least one");
  const bool strict = format.alternates || format.joins_system;
  const std::size_t first = messages[0].role == "system" ? 1 : 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant")
      user_error("message {} has the role '{}': use system, user or assistant", i + 1, role);
    if (strict && role == "system" && i > 0)
      user_error("message {} is a system message: in the chat format {} it must be the first",
                 i + 1, format.name);
    if (format.alternates && i >= first && (role == "user") != ((i - first) % 2 == 0))
      user_error(
          "message {} has the role {}: in the chat format {} user and assistant must alternate, "
          "beginning with the user",
          i + 1, role, format.name);
  }
  if (format.joins_system && first == messages.size())
    user_error("the chat format {} needs a user message after the system message", format.name);
}

std::vector<ChatText> chat_pieces(const ChatFormat& format, std::span<const ChatMessage> messages,
                                  bool add_generation_prompt) {
  check_messages(format, messages);
  std::vector<ChatText> pieces = {{}};
  const auto add = [&](std::string_view text, bool content, bool answer = false) {
    if (text.empty()) return;
    if (pieces.back().content != content || pieces.back().answer != answer)
      pieces.push_back({"", content, answer});
    pieces.back().text += text;
  };
  const ChatMessage* joined = nullptr;  // the system message for the next user message
  const auto add_message = [&](const ChatMessage& message) {
    const ChatFormat::Turn& turn = turn_of(format, message.role);
    const bool answer = message.role == "assistant" && message.trained;
    const std::size_t prompt = answer ? format.generation_prompt.size() : turn.before.size();
    add(turn.before.substr(0, prompt), false);
    add(turn.before.substr(prompt), false, answer);
    if (joined != nullptr) {
      add(content_of(format, *joined), true);
      add(format.system.after, false);
    }
    add(content_of(format, message), true, answer);
    add(turn.after, false, answer);
    joined = nullptr;
  };
  for (const ChatMessage& message : messages) {
    if (!format.joins_system || message.role != "system")
      add_message(message);
    else if (!format.trims || !content_of(format, message).empty())
      joined = &message;
  }
  if (add_generation_prompt) add(format.generation_prompt, false);
  return pieces;
}

std::string text_of(std::span<const ChatText> pieces) {
  std::string text;
  for (const ChatText& piece : pieces) text += piece.text;
  return text;
}

std::string render_chat(const ChatFormat& format, std::span<const ChatMessage> messages,
                        bool add_generation_prompt) {
  return text_of(chat_pieces(format, messages, add_generation_prompt));
}

std::string answer_content(const ChatFormat& format, std::string_view generated) {
  // What a message has between the generation prompt and its content, and between its content and
  // the end of the turn.
  const std::string_view before = format.assistant.before.substr(format.generation_prompt.size());
  const std::string_view after =
      format.assistant.after.substr(0, format.assistant.after.find(format.end_of_turn));
  if (generated.starts_with(before)) generated.remove_prefix(before.size());
  if (generated.ends_with(after)) generated.remove_suffix(after.size());
  return std::string(generated);
}

}  // namespace kintsugi
