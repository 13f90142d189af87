#include "data/chat/example_encoder.h"

#include <algorithm>

#include "core/error.h"

namespace kintsugi {

ExampleLoss parse_example_loss(std::string_view name) {
  if (name == "assistant") return ExampleLoss::Assistant;
  if (name == "completion") return ExampleLoss::Completion;
  if (name == "all") return ExampleLoss::All;
  user_error("--loss is '{}': use assistant, completion or all", name);
}

ExampleFormat example_format(const Tokenizer& tokenizer, const std::string& chat_template) {
  ExampleFormat format;
  format.settings = read_prompt_settings(tokenizer.files(0));
  format.as_chat = !chat_template.empty();
  format.chat = chat_template.empty() ? recognize_chat_format(format.settings.chat_template)
                                      : &find_chat_format(chat_template);
  if (!format.settings.eos.empty()) format.eos = tokenizer.token_id(format.settings.eos);
  if (!format.eos) format.eos = tokenizer.end_of_document();
  return format;
}

ExampleEncoder::ExampleEncoder(const Tokenizer& tokenizer, const ExampleFormat& format)
    : tokenizer_(tokenizer.clone()),
      format_(format),
      encoder_(*tokenizer_, format.settings, BosChoice::Auto, -1) {}

std::vector<ChatPiece> ExampleEncoder::pieces_of(const Example& example,
                                                 const std::vector<ChatMessage>& answer) const {
  if (!example.chat) {
    std::vector<ChatPiece> pieces;
    for (const ChatMessage& message : example.prompt) pieces.push_back({message.content, true});
    for (const ChatMessage& message : answer) pieces.push_back({message.content, true, true});
    return pieces;
  }
  if (format_.chat == nullptr)
    user_error("messages need a chat template, and the tokenizer has {}: give --template NAME ({})",
               format_.settings.chat_template.empty() ? "none" : "one of an unknown format",
               chat_format_names());
  std::vector<ChatMessage> messages = example.prompt;
  messages.insert(messages.end(), answer.begin(), answer.end());
  if (format_.loss == ExampleLoss::Completion)
    for (std::size_t i = 0; i + 1 < messages.size(); ++i) messages[i].trained = false;
  return chat_pieces(*format_.chat, messages, false);
}

void ExampleEncoder::add_sequence(const Example& example, const std::vector<ChatMessage>& answer,
                                  EncodedExample& to) const {
  const std::vector<ChatPiece> pieces = pieces_of(example, answer);
  PromptEncoder::Marked marked = encoder_.encode_answers(pieces);
  if (!example.chat && format_.eos) {
    marked.ids.push_back(*format_.eos);
    marked.answer.push_back(1);
  }
  if (format_.loss == ExampleLoss::All)
    std::fill(marked.answer.begin(), marked.answer.end(), std::uint8_t{1});
  to.ids.insert(to.ids.end(), marked.ids.begin(), marked.ids.end());
  to.mask.insert(to.mask.end(), marked.answer.begin(), marked.answer.end());
  to.ends.push_back(to.ids.size());
  for (const ChatPiece& piece : pieces) to.text_bytes += std::ssize(piece.text);
}

EncodedExample ExampleEncoder::encode(const Example& example) {
  EncodedExample encoded;
  for (const std::vector<ChatMessage>& answer : example.answers)
    add_sequence(example, answer, encoded);
  if (!example.answers.empty()) return encoded;
  encoded.ids = encoder_.encode(example.text, SpecialTokens::AsText);
  encoded.mask.assign(encoded.ids.size(), 1);
  encoded.ends = {encoded.ids.size()};
  encoded.text_bytes = std::ssize(example.text);
  return encoded;
}

}  // namespace kintsugi
