#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

struct ChatMessage {
  std::string role, content;  // system, user or assistant
  bool trained = true;        // of an assistant: the model learns to write it
  bool operator==(const ChatMessage&) const = default;
};

// How a model that was trained for conversations reads them: text around each message. The
// beginning-of-text token is left to the tokenizer.
struct ChatFormat {
  struct Turn {
    std::string_view before, after;  // the content
  };

  std::string_view name;
  Turn system, user, assistant;
  std::string_view generation_prompt;  // begins an answer
  std::string_view end_of_turn;        // the model writes it after an answer
  bool trims = false;                  // removes white space around the content
  bool joins_system = false;           // the system message is written into the first user message
  bool alternates = false;             // user and assistant alternate, beginning with the user
  // A Jinja template with all of `marks` and none of `excluded` is this format.
  std::vector<std::string_view> marks;
  std::vector<std::string_view> excluded = {};
};

const std::vector<ChatFormat>& chat_formats();
std::string chat_format_names();                            // "chatml, llama3, …"
const ChatFormat& find_chat_format(std::string_view name);  // UserError with the known names
// The format of a Jinja template; nullptr if it is not one of ours.
const ChatFormat* recognize_chat_format(std::string_view jinja);
// A Jinja template of the format, for transformers: it renders what render_chat() does, after
// `bos`, and is recognized as this format.
std::string jinja_template(const ChatFormat& format, std::string_view bos);
// The format `name`; if that is empty, the one of the Jinja template of the model `source`.
// UserError if it has none or an unknown one.
const ChatFormat& choose_chat_format(std::string_view name, std::string_view jinja,
                                     std::string_view source);

// UserError about the first message that the format cannot express.
void check_messages(const ChatFormat& format, std::span<const ChatMessage> messages);
// Checks the messages and writes them as text of the format and contents of messages, in turn.
struct ChatText {
  std::string text;
  bool content = false;  // written by the user or the model, not by the format
  // What the model writes after the generation prompt: the content of an assistant's message and
  // the text up to the next message. Only of messages that are trained.
  bool answer = false;
  bool operator==(const ChatText&) const = default;
};
std::vector<ChatText> chat_pieces(const ChatFormat& format, std::span<const ChatMessage> messages,
                                  bool add_generation_prompt);
std::string text_of(std::span<const ChatText> pieces);
// The same as one text.
std::string render_chat(const ChatFormat& format, std::span<const ChatMessage> messages,
                        bool add_generation_prompt);
// The content of the answer that a model generated after the generation prompt: rendered again as a
// message, it gives the generated text.
std::string answer_content(const ChatFormat& format, std::string_view generated);

}  // namespace kintsugi
